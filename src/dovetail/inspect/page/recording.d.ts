/** A recording as the server sends it: docs/inspector.md has every field. Types only; browsers do not load this file. */

/** Its id (null where texts are redacted), its text, and whether it is a control token. */
export type RecordedToken = [id: number | null, text: string, control: boolean];

export interface RecordedEvent {
  type: "Content" | "Reasoning" | "CallStart" | "CallArguments" | "CallEnd" | "Defect";
  text?: string;
  index?: number;
  id?: string;
  name?: string;
  fragment?: string;
  kind?: string;
  detail?: string;
}

export interface Step {
  choice: number;
  at: number;
  tokens: RecordedToken[];
  drafted: number | null;
  accepted: number;
  forced: number;
  cached: number | null;
  events: RecordedEvent[];
  checks: { tool: string | null; fault: string | null }[];
  finish: string | null;
  stop_string: string | null;
  refused?: RecordedToken[] | null;
  refused_by?: "model" | "grammar" | "end" | null;
  allowed?: (number | null)[] | null;
  logprobs?: [logprob: number, top: [text: string, logprob: number][]][] | null;
  guards?: ("silent" | "loop")[];
  inserted?: number;
}

export interface Call {
  id: string;
  name: string;
  arguments: string;
}

export interface Message {
  content: string;
  reasoning: string;
  calls: Call[];
}

export interface Segment {
  text: string;
  control: boolean;
}

/** A picture that the model saw. `data`: its file in base64, if files are recorded. */
export interface Picture {
  sha256: string;
  media_type: string;
  size: number;
  data: string | null;
}

export interface Recording {
  id: string;
  request_id: string;
  api: string;
  model: string | null;
  began: string;
  redacted: boolean;
  repairs: { kind: string; where: string; detail: string; new: boolean }[];
  options: Record<string, unknown> | null;
  prompt: { tokens: number; in_reasoning: boolean; segments: Segment[] | null; ids: number[] | null } | null;
  grammar: string | null;
  steps: Step[];
  messages: (Message & { choice: number })[];
  error: { type: string; message: string } | null;
  times: Record<string, number>;
  stages: Record<string, number>;
  left_out: string[];
  tokenizer?: { digest: string } | null;
  prefix?: { expected: number, kept: number, lost: number, cause: string | null, field: string } | null;
  lanes?: { shared: RecordedToken[], last: RecordedToken[], this: RecordedToken[] } | null;
  pictures?: Picture[];
}
