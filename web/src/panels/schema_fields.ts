// A JSON Schema as a list of fields, and back. The fields show closed objects of plain types. A schema with more than that
// has no fields, so that editing them never drops a part of it.

export const TYPES = ["string", "number", "integer", "boolean", "enum", "array", "object"] as const;
export type FieldType = (typeof TYPES)[number];

export interface Field {
  name: string;
  type: FieldType;
  isRequired: boolean;
  /** The type of an array's items. */
  items: Exclude<FieldType, "array">;
  /** What an enum allows, separated by commas. */
  values: string;
  /** Of an object. */
  fields: Field[];
}

type Schema = Record<string, unknown>;

export const NEW_FIELD: Field = { name: "", type: "string", isRequired: true, items: "string", values: "", fields: [] };

/** The type of the values that a field holds: of an array, that of its items. */
export function innerType({ type, items }: Field): Exclude<FieldType, "array"> {
  return type === "array" ? items : type;
}

/** A field without a name is no part of the schema yet. */
export function schemaOf(fields: readonly Field[]): Schema {
  const named = fields.filter(({ name }) => name !== "");
  return {
    type: "object",
    properties: Object.fromEntries(named.map((field) => [field.name, propertyOf(field)])),
    required: [...new Set(named.filter(({ isRequired }) => isRequired).map(({ name }) => name))],
    additionalProperties: false,
  };
}

export function writeSchema(fields: readonly Field[]): string {
  return JSON.stringify(schemaOf(fields), null, 2);
}

/** Null where the fields cannot show all of the schema. */
export function fieldsOf(schema: unknown): Field[] | null {
  const fields = readFields(schema);
  return canonical(schemaOf(fields)) === canonical(schema) ? fields : null;
}

/** What is wrong with one of the fields of an object, or null. */
export function faultOf(field: Field, siblings: readonly Field[]): string | null {
  if (field.name === "") return "Give the field a name. Without one it is no part of the schema.";
  if (siblings.filter(({ name }) => name === field.name).length > 1) return `Another field is named ${field.name}.`;
  if (innerType(field) === "enum" && valuesOf(field).length === 0) return "List the values, separated by commas.";
  return null;
}

function propertyOf(field: Field): Schema {
  const inner = innerType(field);
  const value =
    inner === "enum" ? { enum: valuesOf(field) } : inner === "object" ? schemaOf(field.fields) : { type: inner };
  return field.type === "array" ? { type: "array", items: value } : value;
}

function valuesOf({ values }: Field): string[] {
  const listed = values.split(",").map((value) => value.trim());
  return [...new Set(listed.filter((value) => value !== ""))];
}

/** Reads what it can; the caller compares the schema of the result with the one that was read. */
function readFields(schema: unknown): Field[] {
  if (!isObject(schema) || !isObject(schema["properties"])) return [];
  const required = Array.isArray(schema["required"]) ? schema["required"] : [];
  return Object.entries(schema["properties"]).map(([name, property]) => ({
    ...readField(property),
    name,
    isRequired: required.includes(name),
  }));
}

function readField(property: unknown): Field {
  const { type, items } = isObject(property) ? property : {};
  if (type === "array") {
    const item = readField(items);
    return { ...item, type: "array", items: item.type === "array" ? "string" : item.type };
  }
  const values = isObject(property) && Array.isArray(property["enum"]) ? property["enum"].join(", ") : "";
  const known = TYPES.find((each) => each === type) ?? (values === "" ? "string" : "enum");
  return { ...NEW_FIELD, type: known, values, fields: readFields(property) };
}

/** Equal for equal schemas: the order of keys and of required names has no meaning. */
function canonical(value: unknown, key = ""): string {
  if (Array.isArray(value)) {
    const parts = value.map((item) => canonical(item));
    return `[${(key === "required" ? parts.sort() : parts).join()}]`;
  }
  if (!isObject(value)) return JSON.stringify(value);
  const parts = Object.entries(value).map(([name, part]) => `${JSON.stringify(name)}:${canonical(part, name)}`);
  return `{${parts.sort().join()}}`;
}

function isObject(value: unknown): value is Schema {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
