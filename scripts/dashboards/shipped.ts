// The type of a shipped dashboard: that of Grafana's schema, as JSON can have it.
import type { AnnotationQuery, Dashboard, DashboardLink, DataQuery, VariableModel } from '@grafana/schema';

// Of these the schema has only what all data sources share.
type More = AnnotationQuery | DataQuery | VariableModel;
// Enums are their strings, and of a link Grafana fills in what is missing.
type Plain<T> = 0 extends 1 & T ? T : T extends string ? `${T}` : T extends Array<infer One> ? Array<Plain<One>>
  : T extends DashboardLink ? Partial<T>
  : T extends More ? { [Key in keyof T]: Plain<T[Key]> } & Record<string, unknown>
  : T extends object ? { [Key in keyof T]: Plain<T[Key]> } : T;

export type Shipped = Plain<Dashboard>;
