// What applications call

import { EventEmitter } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { codeOf, Database, isPassing, textOf } from './database.js'
import { Listener } from './listener.js'
import { Work, type Host } from './worker.js'
import type {
  BatchStatus, Client, DeadLetter, Events, Finished, Handler, InTransaction, Job, Jobs,
  PushOptions, QueueOptions, QueueStatus, WorkOptions
} from './types.js'

/** The parameter of queue_push and the field of queue_post for each option, and its type */
const PARAMETERS: Record<keyof PushOptions, [string, string]> = {
  ttl: ['ttl', 'int'],
  delay: ['delay', 'int'],
  at: ['at', 'timestamptz'],
  priority: ['priority', 'int'],
  dedupKey: ['dedup_key', 'text'],
  dedup: ['dedup', 'text'],
  dedupFor: ['dedup_for', 'int'],
  groupKey: ['group_key', 'text'],
  headers: ['headers', 'jsonb'],
  batch: ['batch', 'bigint'],
  after: ['after', 'bigint'],
  afterSuccess: ['after_success', 'boolean']
}

const running = new Set<Queue<any>>()

/** Stops all workers of the process, and ends it if nobody else handles the signal. The second
 *  signal ends it at once. */
function handleSignal (signal: NodeJS.Signals): void {
  process.removeListener(signal, handleSignal)
  const ours = process.listenerCount(signal) === 0
  void Promise.all([...running].map(async queue => await queue.stop())).then(() => {
    if (ours) process.exit(0)
  })
}

/** Queues of a database: pushes to them, and works on them. J names the payload of each queue. */
export class Queue<J extends Jobs = Jobs> {
  private readonly database: Database
  private readonly works = new Map<string, Work>()
  private readonly emitter = new EventEmitter()
  private readonly host: Host
  private listener?: Listener
  private renewal?: NodeJS.Timeout
  private stopped?: Promise<void>
  private lastTrouble = ''
  private troubledAt = 0

  constructor (private readonly options: QueueOptions = {}) {
    this.database = new Database(options)
    this.host = {
      options,
      database: this.database,
      ttl: options.ttl ?? 60,
      limit: 100,
      emit: (event, ...args) => this.emit(event, ...args)
    }
  }

  // --- pushes ---

  /** Pushes a message; returns its id, or null if it was dropped as a duplicate. */
  async push<Q extends keyof J & string> (q: Q, body: J[Q], options: PushOptions & InTransaction = {}): Promise<string | null> {
    const values: unknown[] = [q, json(body)]
    let parameters = ''
    for (const [option, value] of this.given(options)) {
      const [name, type] = PARAMETERS[option]
      values.push(type === 'jsonb' ? json(value) : value instanceof Date ? value.toISOString() : value)
      parameters += `, ${name} => $${values.length}::${type}`
    }
    const { rows } = await this.client(options).query(
      `SELECT queue_push($1::text, $2::jsonb${parameters})::text AS id`, values)
    return rows[0].id
  }

  /** Pushes several, all or none; returns their ids in the same order. */
  async pushMany<Q extends keyof J & string> (q: Q, messages: Array<{ body: J[Q] } & PushOptions>,
    options: InTransaction = {}): Promise<Array<string | null>> {
    const elements = messages.map(message => {
      const fields = this.given(message).map(([option, value]) => {
        const [name, type] = PARAMETERS[option]
        // Ids of batches are JSON numbers, which JavaScript may not hold.
        return `,"${name}":${type === 'bigint' ? BigInt(value as string) : json(value)}`
      })
      return `{"body":${json(message.body)}${fields.join('')}}`
    })
    const { rows } = await this.client(options).query(
      'SELECT queue_post($1::text, $2::jsonb)::text[] AS ids', [q, `[${elements.join()}]`])
    return rows[0].ids
  }

  private given (options: PushOptions): Array<[keyof PushOptions, unknown]> {
    const headers = { ...this.options.headers?.(), ...options.headers }
    const all: PushOptions = { ...options, headers: Object.keys(headers).length > 0 ? headers : undefined }
    return (Object.keys(PARAMETERS) as Array<keyof PushOptions>)
      .filter(option => all[option] !== undefined && all[option] !== null)
      .map(option => [option, all[option]])
  }

  private client (options: InTransaction): Client {
    return options.tx ?? this.database
  }

  /** Creates the queue, or changes the metadata of one that exists: {"_max_claim_count": 12}, for example. */
  async create (q: keyof J & string, metadata: Record<string, unknown> = {}): Promise<void> {
    const { rows } = await this.database.query(
      'SELECT queue_create($1::text, $2::jsonb) AS created', [q, json(metadata)])
    if (!rows[0].created && Object.keys(metadata).length > 0) {
      await this.database.query('SELECT queue_update($1::text, $2::jsonb)', [q, json(metadata)])
    }
  }

  // --- what becomes of messages ---

  /** Waits until a message is finished, at most so many seconds; null after that. */
  async result<Result = any> (q: keyof J & string, id: string, seconds?: number): Promise<Finished<Result> | null> {
    const client = await this.database.connect()
    let failed = true
    try {
      const { rows } = await client.query('CALL queue_await($1::text, $2::bigint, $3::int)',
        [q, id, seconds === undefined ? null : Math.round(seconds * 1000)])
      failed = false
      return rows[0].result
    } finally {
      this.database.release(client, failed)
    }
  }

  /** Cancels a message: "pending" while a worker has it, whose job is then aborted; null if there is none. */
  async cancel (q: keyof J & string, id: string, reason?: string): Promise<'canceled' | 'pending' | null> {
    const { rows } = await this.database.query(
      'SELECT message_cancel($1::text, $2::bigint, $3::text) AS state', [q, id, reason ?? null])
    return rows[0].state
  }

  /** Dead letters, those of q.dead or of the dead letter queue that is named, oldest first */
  async deadLetters<Q extends keyof J & string> (q: Q, limit = 100): Promise<Array<DeadLetter<J[Q]>>> {
    const { rows } = await this.database.query(
      `SELECT id::text, body, origin_queue AS "originQueue", origin_id::text AS "originId", reason,
         last_error AS "lastError", claim_count AS attempts, died_at AS "diedAt"
       FROM queue_dead_letters($1::text, $2::int)`, [await this.deadLetterQueue(q), limit])
    return rows
  }

  /** Moves dead letters back; returns how many. */
  async redrive (q: keyof J & string, options: { target?: string, limit?: number } = {}): Promise<number> {
    const { rows } = await this.database.query(
      'SELECT queue_redrive($1::text, $2::text, $3::int)::int AS moved',
      [await this.deadLetterQueue(q), options.target ?? null, options.limit ?? null])
    return rows[0].moved
  }

  private async deadLetterQueue (q: string): Promise<string> {
    const { rows } = await this.database.query(
      'SELECT metadata->>\'_dead_letter_queue\' AS name FROM queue_get($1::text)', [q])
    return rows[0]?.name ?? (q.endsWith('.dead') ? q : `${q}.dead`)
  }

  /** The queues, and how many messages each has */
  async status (): Promise<QueueStatus[]> {
    const { rows } = await this.database.query(
      `SELECT queue, free::int, claimed::int, delayed::int, dead_letters::int AS "deadLetters", paused
       FROM queue_depth(NULL::text)`)
    return rows
  }

  // --- batches ---

  async batch (name?: string, options: { keepOpen?: boolean } & InTransaction = {}): Promise<string> {
    const { rows } = await this.client(options).query(
      'SELECT batch_create($1::text, $2::boolean)::text AS id', [name ?? null, options.keepOpen ?? false])
    return rows[0].id
  }

  async closeBatch (batch: string, options: InTransaction = {}): Promise<void> {
    await this.client(options).query('SELECT batch_close($1::bigint)', [batch])
  }

  async batchStatus (batch: string): Promise<BatchStatus> {
    const { rows } = await this.database.query(
      `SELECT name, members::int, unfinished::int, completed::int, failed::int, waiting::int,
         finished_at AS "finishedAt" FROM batch_status($1::bigint)`, [batch])
    return rows[0]
  }

  // --- work ---

  /** Works on a queue until stop(). Resolves when the worker has begun; throws what only you can mend. */
  async work<Q extends keyof J & string> (q: Q, handler: Handler<J[Q]>): Promise<void>
  async work<Q extends keyof J & string> (q: Q, options: WorkOptions<J[Q]>, handler: Handler<J[Q]>): Promise<void>
  async work (q: string, options: WorkOptions | Handler<any>, handler?: Handler<any>): Promise<void> {
    if (typeof options === 'function') return await this.work(q as any, {}, options)
    if (typeof handler !== 'function') throw new TypeError('work() needs a function')
    if (this.works.has(q)) throw new Error(`this process already works on ${q}`)
    const work = new Work(this.host, q, options, handler)
    this.works.set(q, work)
    try {
      await this.check(q)
    } catch (error) {
      if (!isPassing(error)) {
        this.works.delete(q)
        throw error
      }
      this.trouble(error, 'cannot connect') // the listener goes on
    }
    if (this.options.manual) return
    this.start()
    await this.listener!.add(q).catch(error => this.trouble(error, 'cannot listen'))
    work.wake()
  }

  /** What a beginner forgets */
  private async check (q: string): Promise<void> {
    const { rows: [settings] } = await this.database.query(
      `SELECT current_setting('queue.max_claim_limit', true)::int AS most,
         (SELECT metadata->'_max_claim_count' IS NULL FROM queue_get($1::text)) AS endless`, [q])
    this.host.limit = Math.min(settings.most ?? 100, 100)
    if (settings.endless) {
      this.log(`queue ${q} has no _max_claim_count: a message that always fails is tried for ever`)
    }
  }

  private start (): void {
    if (this.listener) return
    const all = (): void => { for (const work of this.works.values()) work.wake(true) }
    const poll = this.options.poll ?? 1
    this.listener = new Listener(this.database, poll, {
      wake: q => this.works.get(q)?.wake(),
      wakeAll: all,
      listening: () => {
        if (this.lastTrouble) this.log('connected again')
        this.lastTrouble = ''
        this.emit('listening')
      },
      polling: () => {
        this.log(`cannot listen through a pooler: polls every ${poll} s`)
        this.emit('polling')
        all()
      },
      trouble: error => this.trouble(error, 'will connect again')
    })
    const interval = Math.min(this.host.ttl / 3, 5) * 1000
    this.renewal = setInterval(() => {
      for (const work of this.works.values()) void work.renew(interval)
    }, interval)
    running.add(this)
    if (this.options.signals ?? true) {
      for (const signal of ['SIGTERM', 'SIGINT'] as const) {
        if (!process.listeners(signal).includes(handleSignal)) process.on(signal, handleSignal)
      }
    }
  }

  /** For tests, with the option manual: does what is waiting now, and what that pushes; returns how many jobs. */
  async drain (): Promise<number> {
    const count = (): number => [...this.works.values()].reduce((sum, work) => sum + work.ended, 0)
    const start = count()
    let before
    do {
      before = count()
      for (const work of this.works.values()) {
        work.wake()
        await work.idle()
      }
    } while (count() > before)
    return before - start
  }

  /** Claims nothing more, lets jobs end for so many seconds, aborts the others and gives them back,
   *  and closes all connections. */
  async stop (seconds = this.options.stop ?? 10): Promise<void> {
    this.stopped ??= this.end(seconds)
    return await this.stopped
  }

  private async end (seconds: number): Promise<void> {
    const works = [...this.works.values()]
    if (this.listener) {
      this.log('stopping')
      this.emit('stopping')
    }
    for (const work of works) work.stop()
    const idle = Promise.all(works.map(async work => await work.idle()))
    if (!await within(idle, seconds)) {
      for (const work of works) work.abort()
      await within(idle, 5) // for the server to answer
    }
    clearInterval(this.renewal)
    await within(Promise.all([this.listener?.stop(), this.database.end()]), 1)
    running.delete(this)
    this.emit('stopped')
  }

  // --- events ---

  on<E extends keyof Events> (event: E, listener: (...args: Events[E]) => void): this {
    this.emitter.on(event, listener as any)
    return this
  }

  off<E extends keyof Events> (event: E, listener: (...args: Events[E]) => void): this {
    this.emitter.off(event, listener as any)
    return this
  }

  /** An error of a listener must not become one of a job. */
  private emit (event: string, ...args: any[]): void {
    if (event === 'failed') this.logFailure(...args as Events['failed'])
    if (event === 'aborted') this.log(`message ${args[0].id} of ${args[0].queue as string}: ${args[1].message as string}`)
    if (event === 'trouble') return this.trouble(args[0], args[1])
    try {
      this.emitter.emit(event, ...args)
    } catch (error) {
      this.log(`a listener of "${event}" has failed: ${textOf(error)}`)
    }
  }

  /** Says what is wrong once in a minute, not at each attempt. */
  private trouble (error: unknown, what: string): void {
    const text = `${what}: ${textOf(error)}${codeOf(error) ? ` (${codeOf(error)})` : ''}`
    const now = performance.now()
    if (text !== this.lastTrouble || now - this.troubledAt > 60000) {
      this.log(text)
      this.troubledAt = now
    }
    this.lastTrouble = text
    this.emitter.emit('trouble', error, what)
  }

  /** Not at each attempt, since a message may fail for days: 1, 2, 4, 8 and so on */
  private logFailure (job: Job<any>, error: unknown, due: Date | null): void {
    const { attempt } = job
    if (due && (attempt & (attempt - 1)) !== 0) return
    const stack = attempt === 1 && error instanceof Error && error.stack
    this.log(`message ${job.id} of ${job.queue}: attempt ${attempt} failed${due ? '' : ', now a dead letter'}: ${stack || textOf(error)}`)
  }

  private log (text: string): void {
    const line = text.replace(/[\x00-\x08\x0b-\x1f]/g, '\ufffd')
    if (this.options.log) this.options.log(line)
    else console.error(`pg-claim-queue: ${line}`)
  }
}

function json (value: unknown): string {
  const text = JSON.stringify(value)
  if (text === undefined) throw new TypeError('the value has no JSON form')
  return text
}

/** Whether the promise resolves within so many seconds */
async function within (promise: Promise<unknown>, seconds: number): Promise<boolean> {
  const timer = new AbortController()
  const late = sleep(seconds * 1000, false, { signal: timer.signal }).catch(() => false)
  try {
    return await Promise.race([promise.then(() => true), late])
  } finally {
    timer.abort()
  }
}
