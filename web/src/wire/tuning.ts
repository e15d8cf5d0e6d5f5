// Fine-tuning jobs of the caller's project, in OpenAI's shapes.

import { getJson, manage, upload } from "./client";

export type JobStatus = "validating_files" | "queued" | "running" | "paused" | "succeeded" | "proposed" | "failed" | "cancelled";

export interface Job {
  id: string;
  model: string;
  fine_tuned_model: string | null;
  status: JobStatus;
  created_at: number;
  finished_at: number | null;
  trained_tokens: number | null;
  error: { message: string | null; code: string | null } | null;
}

export interface JobEvent {
  id: string;
  created_at: number;
  level: "info" | "warn" | "error";
  type: "message" | "metrics";
  message: string;
  data: Record<string, unknown> | null;
}

export interface JobDraft {
  model: string;
  training_file: string;
  suffix?: string;
  hyperparameters?: { n_epochs: number };
}

/** One point of the loss curve. */
export interface LossPoint {
  step: number;
  loss: number;
}

const OPEN: readonly JobStatus[] = ["validating_files", "queued", "running", "paused"];

export function isOpen(job: Job): boolean {
  return OPEN.includes(job.status);
}

export async function listJobs(): Promise<Job[]> {
  return (await getJson<{ data: Job[] }>("/v1/fine_tuning/jobs?limit=20")).data;
}

/** The newest events, newest first. */
export async function listEvents(id: string): Promise<JobEvent[]> {
  return (await getJson<{ data: JobEvent[] }>(`${pathOf(id)}/events?limit=100`)).data;
}

export async function uploadRows(file: File): Promise<string> {
  return (await upload<{ id: string }>("/v1/files", file, { purpose: "fine-tune" })).id;
}

export function createJob(draft: JobDraft): Promise<Job> {
  return manage<Job>("POST", "/v1/fine_tuning/jobs", draft);
}

export function changeJob(id: string, action: "cancel" | "pause" | "resume"): Promise<Job> {
  return manage<Job>("POST", `${pathOf(id)}/${action}`, {});
}

/** The training losses of a job's events, in order of steps. */
export function lossesOf(events: readonly JobEvent[]): LossPoint[] {
  const points = new Map<number, number>();
  for (const { type, data } of events) {
    if (type !== "metrics" || typeof data?.step !== "number" || typeof data.train_loss !== "number") continue;
    points.set(data.step, data.train_loss);
  }
  return [...points].map(([step, loss]) => ({ step, loss })).sort((a, b) => a.step - b.step);
}

function pathOf(id: string): string {
  return `/v1/fine_tuning/jobs/${encodeURIComponent(id)}`;
}
