// What applications see

/** The payload of each queue, by its name */
export type Jobs = Record<string, any>

/** A client of pg, of its pool, or whatever else can run a statement in a transaction of yours */
export interface Client {
  query (text: string, values?: any[]): Promise<{ rows: any[]; rowCount: number | null }>
}

/** How to connect: as for pg. What is missing is taken from PGHOST and so on. */
export interface ConnectionOptions {
  connectionString?: string
  host?: string
  port?: number
  user?: string
  database?: string
  password?: string | (() => string | Promise<string>)
  ssl?: unknown
  options?: string
  application_name?: string
}

export interface QueueOptions extends ConnectionOptions {
  /** Connections for the work, besides the one that waits (10; at least 2) */
  connections?: number
  /** Seconds after which the messages of a worker that was killed are free again (60) */
  ttl?: number
  /** Seconds that jobs have to end when the worker is told to stop (10) */
  stop?: number
  /** Seconds between two looks where the worker cannot listen, as behind PgBouncer (1) */
  poll?: number
  /** Stop at SIGTERM and SIGINT (true) */
  signals?: boolean
  /** Work only in drain(), for tests (false) */
  manual?: boolean
  /** Where lines of the log go (standard error) */
  log?: (line: string) => void
  /** Headers for every message that is pushed, such as a traceparent */
  headers?: () => Record<string, unknown> | undefined
  /** Wraps each job, such as into a span: calls run, and returns what that returns */
  around?: (job: Job<any>, run: () => Promise<unknown>) => Promise<unknown>
}

export interface PushOptions {
  /** Seconds that the message lives */
  ttl?: number
  /** Seconds until it can be claimed */
  delay?: number
  /** When it can be claimed, in place of delay */
  at?: Date
  /** 0 to 9; higher comes first */
  priority?: number
  /** While another message holds the key, the push is dropped and returns null */
  dedupKey?: string
  /** What holds the key: a message that waits, one that is unfinished; or the push replaces it */
  dedup?: 'waiting' | 'unfinished' | 'replace'
  /** Seconds that the key holds, whatever became of the message */
  dedupFor?: number
  groupKey?: string
  headers?: Record<string, unknown>
  /** The batch that the message is a member of */
  batch?: string
  /** The batch that it waits for */
  after?: string
  afterSuccess?: boolean
}

export interface InTransaction {
  /** A client that is in your transaction */
  tx?: Client
}

export interface Job<Body> {
  readonly queue: string
  readonly id: string
  readonly body: Body
  /** 1 for the first */
  readonly attempt: number
  readonly priority: number
  readonly createdAt: Date
  readonly groupKey: string | null
  readonly headers: Record<string, any> | null
}

export interface Context {
  /** Aborted when the job is canceled, has lost its claim or exceeded its time, or the worker stops */
  signal: AbortSignal
  /** A transaction that begins with its first statement, and commits with the completion of the job */
  tx: Client
  /** Tells the listeners of the event "progress" */
  progress: (done: number, total?: number, note?: string) => void
}

/** What it returns is the result of the job, where the queue keeps results */
export type Handler<Body> = (job: Job<Body>, context: Context) => unknown

export interface WorkOptions<Body = any> {
  /** Jobs at a time (1) */
  concurrency?: number
  /** Seconds after which a job is aborted, and has failed (none) */
  timeout?: number
  /** How many messages may be claimed ahead where jobs are short (100) */
  prefetch?: number
  /** Checks a body, and throws if it is not right: one of zod's, for example */
  schema?: { parse: (body: unknown) => Body }
}

export interface Events {
  /** A job is done, after so many milliseconds */
  done: [job: Job<any>, ms: number]
  /** An attempt has failed; due is null when the message is now a dead letter */
  failed: [job: Job<any>, error: unknown, due: Date | null]
  /** A job was aborted, and its effects were rolled back: canceled, or its claim was lost */
  aborted: [job: Job<any>, reason: Error]
  snoozed: [job: Job<any>, seconds: number]
  progress: [job: Job<any>, done: number, total?: number, note?: string]
  /** The connection that waits was made */
  listening: []
  /** It cannot listen, and polls */
  polling: []
  /** Something that the worker tries again */
  trouble: [error: unknown, what: string]
  stopping: []
  stopped: []
}

export interface DeadLetter<Body = any> {
  id: string
  body: Body
  originQueue: string
  originId: string
  reason: string
  lastError: string | null
  attempts: number
  diedAt: Date
}

export interface Finished<Result = any> {
  outcome: 'completed' | 'dead' | 'expired' | 'canceled' | 'duplicate' | 'deleted' | 'unknown'
  result: Result | null
  error: string | null
}

export interface BatchStatus {
  name: string | null
  members: number
  unfinished: number
  completed: number
  failed: number
  waiting: number
  finishedAt: Date | null
}

/** A few seconds old; null: not known yet, after a crash of the server */
export interface QueueStatus {
  queue: string
  free: number | null
  claimed: number | null
  delayed: number | null
  deadLetters: number | null
  paused: boolean
}

/** An error that no retry mends: the message is a dead letter at once */
export class PermanentError extends Error {
  override name = 'PermanentError'
}

/** Try again in so many seconds, in place of the pause of the queue */
export class RetryError extends Error {
  override name = 'RetryError'
  constructor (public readonly delay: number, message = 'to be tried again', options?: { cause?: unknown }) {
    super(message, options)
  }
}

/** Not an error: run the job again in so many seconds. Its transaction is rolled back. */
export class Snooze extends Error {
  override name = 'Snooze'
  constructor (public readonly delay: number) {
    super(`again in ${delay} s`)
  }
}

/** The reason of a signal */
export class Aborted extends Error {
  override name = 'Aborted'
  constructor (public readonly why: 'canceled' | 'lost' | 'timeout' | 'stop', message: string) {
    super(message)
  }
}
