// The schema builder's plain part: fields become a schema, and a schema becomes fields where nothing of it is lost.

import { describe, expect, test } from "vitest";
import { faultOf, fieldsOf, NEW_FIELD, schemaOf, type Field } from "../src/panels/schema_fields";

const field = (part: Partial<Field>): Field => ({ ...NEW_FIELD, ...part });
const FIELDS: Field[] = [
  field({ name: "name" }),
  field({ name: "height", type: "number", isRequired: false }),
  field({ name: "age", type: "integer" }),
  field({ name: "is_member", type: "boolean" }),
  field({ name: "size", type: "enum", values: "small, large" }),
  field({ name: "tags", type: "array", items: "string" }),
  field({ name: "address", type: "object", fields: [field({ name: "city" })] }),
  field({ name: "orders", type: "array", items: "object", fields: [field({ name: "id", type: "integer" })] }),
];
const closed = { type: "object", additionalProperties: false };
const SCHEMA = {
  ...closed,
  properties: {
    name: { type: "string" },
    height: { type: "number" },
    age: { type: "integer" },
    is_member: { type: "boolean" },
    size: { enum: ["small", "large"] },
    tags: { type: "array", items: { type: "string" } },
    address: { ...closed, properties: { city: { type: "string" } }, required: ["city"] },
    orders: { type: "array", items: { ...closed, properties: { id: { type: "integer" } }, required: ["id"] } },
  },
  required: ["name", "age", "is_member", "size", "tags", "address", "orders"],
};

test("every type has its schema", () => {
  expect(schemaOf(FIELDS)).toEqual(SCHEMA);
});

test("a schema of fields is read back into them, in any order of its keys", () => {
  const { properties, required, ...rest } = SCHEMA;
  expect(schemaOf(fieldsOf({ required: required.toReversed(), ...rest, properties })!)).toEqual(SCHEMA);
});

describe("fields are not offered where they would drop a part of the schema", () => {
  const base = { ...closed, properties: { a: { type: "string" } }, required: ["a"] };
  const property = (a: unknown) => ({ ...base, properties: { a } });
  test.each([
    ["keyword", property({ type: "string", minLength: 1 })],
    ["description", { ...base, description: "x" }],
    ["open object", { type: "object", properties: base.properties, required: ["a"] }],
    ["unknown type", property({ type: "strin" })],
    ["value that is no string", property({ enum: [1, 2] })],
    ["value with a comma", property({ enum: ["a,b"] })],
    ["array of arrays", property({ type: "array", items: { type: "array", items: { type: "string" } } })],
    ["required name without a property", { ...base, required: ["a", "b"] }],
    ["no schema", [1, null]],
    ["nothing", undefined],
  ])("%s", (_, schema) => {
    expect(fieldsOf(schema)).toBeNull();
  });
  test("but they are for what is left", () => {
    expect(fieldsOf(base)).toEqual([field({ name: "a" })]);
  });
});

test("a field without a name is no part of the schema", () => {
  expect(schemaOf([field({})])).toEqual({ ...closed, properties: {}, required: [] });
});

test("faults are named", () => {
  const twins = [field({ name: "a" }), field({ name: "a", type: "number" })];
  expect(faultOf(field({}), [])).toMatch(/name/u);
  expect(faultOf(twins[0]!, twins)).toBe("Another field is named a.");
  expect(faultOf(field({ name: "a", type: "enum", values: " , " }), [])).toMatch(/values/u);
  expect(faultOf(field({ name: "a" }), twins.slice(0, 1))).toBeNull();
});

test("a property may be named like a member of every object", () => {
  const schema = schemaOf([field({ name: "__proto__" })]);
  expect(JSON.stringify(schema)).toContain('"properties":{"__proto__":{"type":"string"}}');
});
