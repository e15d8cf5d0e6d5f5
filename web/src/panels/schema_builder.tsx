// The fields of a JSON answer as a form, which writes the JSON Schema. The schema is the text: what is edited there by hand
// is read back into the form.

import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Picker } from "../ui/picker";
import { faultOf, fieldsOf, innerType, NEW_FIELD, TYPES, writeSchema, type Field, type FieldType } from "./schema_fields";

const TYPE_NAMES = Object.fromEntries(TYPES.map((type) => [type, type]));
const ITEM_NAMES = Object.fromEntries(TYPES.filter((type) => type !== "array").map((type) => [type, type]));

interface Props {
  text: string;
  /** The value of `text`; undefined where it is not valid JSON. */
  schema: unknown;
  onChange: (text: string) => void;
}

export function SchemaBuilder({ text, schema, onChange }: Props) {
  // A field without a name is in no text, so the fields that wrote the text are kept beside it.
  const [written, setWritten] = useState<{ text: string; fields: Field[] } | null>(null);
  const read = useMemo(() => fieldsOf(schema), [text]);
  const fields = written?.text === text ? written.fields : read;
  const change = (next: Field[]) => {
    const nextText = writeSchema(next);
    setWritten({ text: nextText, fields: next });
    onChange(nextText);
  };
  return (
    <section class="builder" aria-label="Fields of the answer">
      {fields ? (
        <FieldList fields={fields} place="" owner="" onChange={change} />
      ) : (
        <>
          <p class="faint">
            {schema === undefined
              ? "The text is not a schema. Correct it, or start again with fields."
              : "The schema has parts that fields do not show. Edit it as text, or start again with fields."}
          </p>
          <button type="button" onClick={() => change([])}>
            Start again with fields
          </button>
        </>
      )}
    </section>
  );
}

interface ListProps {
  fields: Field[];
  /** Number of the field that these belong to, as in `2.1.`; empty at the top. */
  place: string;
  /** Name of the field that these belong to. */
  owner: string;
  onChange: (fields: Field[]) => void;
}

function FieldList({ fields, place, owner, onChange }: ListProps) {
  const list = useRef<HTMLDivElement>(null);
  const add = useRef<HTMLButtonElement>(null);
  const isAdded = useRef(false);
  useLayoutEffect(() => {
    if (isAdded.current) list.current?.querySelector<HTMLElement>(":scope > fieldset:last-of-type input")?.focus();
    isAdded.current = false;
  }, [fields.length]);
  return (
    <div class="field-list" ref={list}>
      {fields.map((field, i) => (
        <FieldRow
          key={i}
          field={field}
          place={`${place}${i + 1}`}
          fault={faultOf(field, fields)}
          onChange={(part) => onChange(fields.map((other, j) => (j === i ? { ...other, ...part } : other)))}
          onRemove={() => {
            onChange(fields.filter((_, j) => j !== i));
            add.current?.focus();
          }}
        />
      ))}
      <button
        type="button"
        class="small"
        ref={add}
        onClick={() => {
          isAdded.current = true;
          onChange([...fields, NEW_FIELD]);
        }}
      >
        Add field{owner && ` to ${owner}`}
      </button>
    </div>
  );
}

interface RowProps {
  field: Field;
  place: string;
  fault: string | null;
  onChange: (part: Partial<Field>) => void;
  onRemove: () => void;
}

function FieldRow({ field, place, fault, onChange, onRemove }: RowProps) {
  const inner = innerType(field);
  const faultId = `fault-${place}`;
  return (
    <fieldset class="field">
      <legend class="hidden">Field {place}</legend>
      <div class="row">
        <label class="name">
          Name
          <input
            value={field.name}
            spellcheck={false}
            aria-invalid={fault !== null}
            aria-describedby={fault === null ? undefined : faultId}
            onInput={(event) => onChange({ name: event.currentTarget.value })}
          />
        </label>
        <Picker label="Type" value={field.type} options={TYPE_NAMES} onPick={(type) => onChange({ type: type as FieldType })} />
        {field.type === "array" && (
          <Picker
            label="Items"
            value={field.items}
            options={ITEM_NAMES}
            onPick={(items) => onChange({ items: items as Field["items"] })}
          />
        )}
        {inner === "enum" && (
          <label class="name">
            Values
            <input
              value={field.values}
              placeholder="small, large"
              onInput={(event) => onChange({ values: event.currentTarget.value })}
            />
          </label>
        )}
        <label class="inline">
          <input
            type="checkbox"
            checked={field.isRequired}
            onChange={(event) => onChange({ isRequired: event.currentTarget.checked })}
          />
          Required
        </label>
        <button type="button" class="ghost" aria-label={`Remove field ${field.name || place}`} onClick={onRemove}>
          ×
        </button>
      </div>
      {fault !== null && (
        <p class="fault" id={faultId}>
          {fault}
        </p>
      )}
      {inner === "object" && (
        <FieldList
          fields={field.fields}
          place={`${place}.`}
          owner={field.name || `field ${place}`}
          onChange={(fields) => onChange({ fields })}
        />
      )}
    </fieldset>
  );
}
