// The server's wire, as far as the playground reads and writes it. Names are the wire's own.

export type Effort = "none" | "instant" | "low" | "medium" | "high";
export type DecoderName = "ar" | "verify" | "confidence" | "edit";

export interface DecoderBody {
  name?: DecoderName;
  canvas_len?: number;
}

export interface ToolCall {
  id: string;
  type: "function";
  function: { name: string; arguments: string };
}

export interface WireMessage {
  role: "system" | "user" | "assistant" | "tool";
  content: string | null;
  tool_calls?: ToolCall[];
  tool_call_id?: string;
}

export interface ToolSpec {
  type: "function";
  function: { name: string; description?: string; parameters?: unknown };
}

export interface ChatBody {
  model: string;
  messages: WireMessage[];
  max_tokens?: number;
  temperature?: number;
  seed?: number;
  reasoning_effort?: Effort;
  decoder?: DecoderBody;
  tools?: ToolSpec[];
  response_format?: unknown;
  logprobs?: boolean;
  top_logprobs?: number;
  diffusing?: boolean;
  diffusion_detail?: "tokens";
  stream?: boolean;
  stream_options?: { include_usage: boolean };
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  reasoning_tokens: number;
  cached_input_tokens: number;
  quicksilver?: { forwards: number; tokens_per_forward: number; rounds?: number };
}

export type TokenState = "forced" | "committed" | "decided" | "masked";
export type Alternative = [text: string, probability: number];
export type FrameToken = [text: string, state: TokenState, confidence: number | null, others?: Alternative[]];

export interface FrameDetail {
  step: number;
  /** Code points that stay. */
  committed: number;
  decided: number;
  masked: number;
  confidence: number;
  shown?: number;
  tokens?: FrameToken[];
}

export interface ToolCallDelta {
  index: number;
  id?: string;
  function?: { name?: string; arguments?: string };
}

export interface ChatDelta {
  content?: string | null;
  reasoning_content?: string | null;
  tool_calls?: ToolCallDelta[] | null;
}

export interface ChatChunk {
  choices: { delta: ChatDelta; finish_reason: string | null }[];
  usage?: Usage | null;
  quicksilver?: FrameDetail;
  error?: { message: string; code?: string };
}

export interface ChatReply {
  id: string;
  choices: { message: { content: string | null }; finish_reason: string }[];
  usage: Usage;
  warning?: string | null;
}

export interface TextReply {
  id: string;
  choices: { text: string; finish_reason: string }[];
  usage: Usage;
  warning?: string | null;
}

export interface ModelEntry {
  id: string;
  name: string;
  description: string;
  /** Unknown until the model is loaded for the first time. */
  context_length?: number;
  max_output_length?: number;
  pricing: { prompt: string; completion: string; input_cache_reads: string };
  supported_features: string[];
  /** The model that the name selects. */
  quicksilver: { model: string; state: string };
}

export interface About {
  version: string;
  model: string;
  device: string;
  accounts: boolean;
  context_len: number;
  max_canvas_len: number;
  /** Of chat requests that name none. */
  reasoning_effort: string;
  /** Pages of the documentation that the server has. */
  docs: string[];
}
