// The work on one queue: claims, jobs, and what becomes of them

import { isLost, isPassing, textOf, Transaction, type Database } from './database.js'
import { Backoff } from './listener.js'
import {
  Aborted, PermanentError, RetryError, Snooze,
  type Handler, type Job, type QueueOptions, type WorkOptions
} from './types.js'

const SHORT = 50 // milliseconds that a claim may take, to be followed by a larger one
const LONG = 100 // milliseconds of a job after which nothing is claimed ahead
const GATHER = 5 // milliseconds that a job which is done waits for others of its claim

const MESSAGE = `SELECT id::text, body::text, claim_id, claim_count AS attempt, priority,
  created_at, group_key, headers::text FROM`

/** What became of a job: done, unless one of the others */
interface Outcome {
  task: Task
  result?: string
  error?: unknown
  snooze?: number
}

/** A message that is claimed */
interface Task {
  job: Job<any>
  text: string // of the body
  lease: Lease
  state: 'waiting' | 'running' | 'ending'
  abort?: (reason: Aborted) => void
}

/** The messages of one claim */
interface Lease {
  claim: string
  tasks: Set<Task> // that are not ended
  outcomes: Outcome[] // that the server does not know
  renewed: number // when
  full: boolean
  started: number
  lost: boolean
  returned: boolean // some are to be given back when the others have ended
  flushing: boolean
  timer?: NodeJS.Timeout
}

/** What the work on a queue needs of the worker */
export interface Host {
  options: QueueOptions
  database: Database
  ttl: number
  limit: number // of one claim
  emit: (event: string, ...args: any[]) => void
}

export class Work {
  private readonly concurrency: number
  private readonly leases = new Set<Lease>()
  private readonly backoff = new Backoff()
  private waiting: Task[] = []
  private running = 0
  private claiming = 0 // messages that are being claimed
  private fetching = false
  private more = false // the queue may have something to claim
  private ahead = 0 // messages that are claimed beyond those that can run
  private stopping = false
  private idlers: Array<() => void> = []
  private retry?: NodeJS.Timeout
  /** Jobs that have ended, in whatever way */
  ended = 0

  constructor (private readonly host: Host, readonly q: string,
    private readonly options: WorkOptions, private readonly handler: Handler<any>) {
    this.concurrency = Math.max(options.concurrency ?? 1, 1)
  }

  /** The queue may have something. A new connection ends the pause after an error. */
  wake (connected = false): void {
    if (connected) {
      clearTimeout(this.retry)
      this.retry = undefined
    }
    this.more = true
    void this.fetch()
  }

  /** Resolves when it has nothing to do. */
  async idle (): Promise<void> {
    if (!this.busy()) return
    return await new Promise(resolve => this.idlers.push(resolve))
  }

  private busy (): boolean {
    return this.fetching || this.leases.size > 0 || (this.more && !this.stopping)
  }

  private rest (): void {
    if (this.busy()) return
    for (const resolve of this.idlers.splice(0)) resolve()
  }

  // --- claims ---

  /** How many it may claim; with freed, as if so many of those that run had ended */
  private room (freed = 0): number {
    if (this.stopping) return 0
    const most = this.concurrency + this.ahead
    const held = this.running + this.waiting.length + this.claiming - freed
    // What a claim of few costs is that of many: while enough can run, it waits for room.
    if (held >= this.concurrency && held > most / 2) return 0
    return Math.max(Math.min(most - held, this.host.limit), 0)
  }

  private async fetch (): Promise<void> {
    const limit = this.room()
    if (this.fetching || !this.more || limit === 0 || this.retry) return this.rest()
    this.fetching = true
    this.more = false // a wake-up from now on counts
    this.claiming += limit
    try {
      const { rows } = await this.host.database.query(
        `${MESSAGE} queue_claim($1::text, $2::int, "limit" => $3::int)`, [this.q, this.host.ttl, limit])
      this.claiming -= limit
      this.accept(rows, limit)
      this.backoff.reset()
    } catch (error) {
      this.claiming -= limit
      this.more = true
      this.later(error, 'cannot claim')
    } finally {
      this.fetching = false
    }
    void this.fetch()
  }

  /** Claims again after a pause. */
  private later (error: unknown, what: string): void {
    if (this.stopping) return
    this.host.emit('trouble', error, `${what} from ${this.q}`)
    this.retry ??= setTimeout(() => {
      this.retry = undefined
      void this.fetch()
    }, this.backoff.next())
  }

  /** Takes the messages of a claim. There may be more even if there are fewer than the limit. */
  private accept (rows: any[], limit: number): void {
    if (rows.length === 0) return
    this.more = true
    const now = performance.now()
    const lease: Lease = {
      claim: rows[0].claim_id,
      tasks: new Set(),
      outcomes: [],
      renewed: now,
      started: now,
      full: rows.length === limit,
      lost: false,
      returned: false,
      flushing: false
    }
    this.leases.add(lease)
    for (const row of rows) {
      const task: Task = { job: { ...this.describe(row), body: undefined }, text: row.body, lease, state: 'waiting' }
      lease.tasks.add(task)
      this.waiting.push(task)
    }
    if (this.stopping) this.giveBack()
    this.pump()
  }

  private describe (row: any): Omit<Job<any>, 'body'> {
    return {
      queue: this.q,
      id: row.id,
      attempt: row.attempt,
      priority: row.priority,
      createdAt: row.created_at,
      groupKey: row.group_key,
      headers: row.headers === null ? null : JSON.parse(row.headers)
    }
  }

  // --- jobs ---

  private pump (): void {
    while (this.running < this.concurrency && this.waiting.length > 0) {
      const task = this.waiting.shift()!
      this.running++
      task.state = 'running'
      void this.run(task)
    }
  }

  private async run (task: Task): Promise<void> {
    const start = performance.now()
    const transaction = new Transaction(this.host.database)
    let outcome: Outcome | null = null
    try {
      const result = await this.attempt(task, transaction)
      const text = result === undefined ? undefined : JSON.stringify(result)
      task.state = 'ending'
      if (transaction.used) await this.commit(task, transaction, text)
      else outcome = { task, result: text }
      this.host.emit('done', task.job, performance.now() - start)
    } catch (error) {
      task.state = 'ending'
      await transaction.rollback(error instanceof Aborted)
      outcome = this.failure(task, error)
    }
    this.running--
    this.ended++
    this.learn(task.lease, performance.now() - start)
    this.end(task, outcome)
    this.pump()
    if (task.lease.tasks.size > 0) void this.fetch() // else the step of its claim does that
  }

  /** Runs the handler until it ends or is aborted. */
  private async attempt (task: Task, tx: Transaction): Promise<unknown> {
    const controller = new AbortController()
    const { signal } = controller
    const { timeout, schema } = this.options
    const aborted = new Promise<never>((_resolve, reject) => {
      task.abort = reason => {
        controller.abort(reason)
        reject(reason)
      }
    })
    aborted.catch(() => {})
    const timer = timeout && setTimeout(() =>
      task.abort?.(new Aborted('timeout', `the time limit of ${timeout} s was exceeded`)), Math.min(timeout * 1000, 2 ** 31 - 1))
    try {
      const body = JSON.parse(task.text)
      const job = Object.assign(task.job, { body: schema ? schema.parse(body) : body })
      const progress = (...args: any[]): void => this.host.emit('progress', job, ...args)
      const run = async (): Promise<unknown> => await this.handler(job, { signal, tx, progress })
      const { around } = this.host.options
      const ended = around ? around(job, run) : run()
      ended.catch(() => {}) // it may fail later than it was aborted
      return await Promise.race([ended, aborted])
    } finally {
      clearTimeout(timer)
      task.abort = undefined
    }
  }

  /** Completes the message in its transaction, and with the last message of a claim makes the
   *  next claim. */
  private async commit (task: Task, tx: Transaction, result: string | undefined): Promise<void> {
    const { lease, job } = task
    if (lease.lost) throw new Aborted('lost', 'the claim was lost')
    if (result !== undefined || lease.tasks.size > 1 || lease.outcomes.length > 0 || lease.flushing || lease.returned) {
      await tx.commit('SELECT message_complete($1::text, $2::bigint, $3::text, $4::jsonb)',
        [this.q, job.id, lease.claim, result ?? null])
      return
    }
    const limit = this.room(1)
    this.claiming += limit
    try {
      const rows = await tx.commit(`${MESSAGE} queue_step($1::text, $2::text, ttl => $3::int, "limit" => $4::int)`,
        [this.q, lease.claim, this.host.ttl, limit])
      this.claiming -= limit
      this.accept(rows, limit)
    } catch (error) {
      this.claiming -= limit
      throw error
    }
  }

  /** What becomes of a job that has thrown; null: nothing, or it was given back */
  private failure (task: Task, error: unknown): Outcome | null {
    const { job, lease } = task
    if (error instanceof Snooze) return { task, snooze: error.delay }
    if (error instanceof Aborted && error.why !== 'timeout') {
      if (error.why === 'stop') lease.returned = true
      else this.host.emit('aborted', job, error)
      return null
    }
    if (isLost(error)) {
      const canceled = (error as any).code === 'QU004'
      if (canceled) lease.returned = true // a release removes what was canceled
      this.host.emit('aborted', job, new Aborted(canceled ? 'canceled' : 'lost', textOf(error)))
      return null
    }
    return { task, error }
  }

  /** Where jobs are short, more is claimed at a time; after a long one, nothing ahead. */
  private learn (lease: Lease, ms: number): void {
    const most = this.options.prefetch ?? 100
    if (ms > LONG) this.ahead = 0
    else if (lease.full && lease.tasks.size === 1 && performance.now() - lease.started < SHORT) {
      this.ahead = Math.min(this.ahead ? this.ahead * 2 : this.concurrency, most)
    }
  }

  // --- what became of them ---

  private end (task: Task, outcome: Outcome | null): void {
    const { lease } = task
    lease.tasks.delete(task)
    if (outcome && !lease.lost) lease.outcomes.push(outcome)
    if (lease.tasks.size === 0) void this.flush(lease)
    else if (outcome) lease.timer ??= setTimeout(() => { void this.flush(lease) }, GATHER)
  }

  /** Tells the server what became of the jobs of a claim, and with the last of them claims more. */
  private async flush (lease: Lease): Promise<void> {
    clearTimeout(lease.timer)
    lease.timer = undefined
    if (lease.flushing) return
    lease.flushing = true
    const backoff = new Backoff()
    while (!lease.lost && (lease.outcomes.length > 0 || (lease.returned && lease.tasks.size === 0))) {
      const outcomes = lease.outcomes.splice(0)
      try {
        await this.settle(lease, outcomes)
      } catch (error) {
        lease.outcomes.unshift(...outcomes)
        this.host.emit('trouble', error, `cannot complete messages of ${this.q}`)
        void this.fetch()
        await new Promise(resolve => setTimeout(resolve, backoff.next()))
        if (performance.now() - lease.renewed > this.host.ttl * 1000) this.lose(lease)
      }
    }
    lease.flushing = false
    if (lease.tasks.size === 0 || lease.lost) {
      this.leases.delete(lease)
      void this.fetch()
    }
  }

  /** Removes from outcomes what is settled; throws if the same may succeed later. */
  private async settle (lease: Lease, outcomes: Outcome[]): Promise<void> {
    const failed = outcomes.filter(o => 'error' in o || o.snooze !== undefined)
    const results = outcomes.filter(o => o.result !== undefined)
    const done = outcomes.filter(o => !failed.includes(o) && !results.includes(o))
    const last = lease.tasks.size === 0
    const { database } = this.host

    await this.each(lease, outcomes, failed)
    await this.together(lease, outcomes, results, async key => await database.query(
      `SELECT message_complete($1::text, m.id, $3::text, m.result)
       FROM unnest($2::bigint[], $4::jsonb[]) AS m(id, result)`, [...key, results.map(o => o.result)]))
    await this.together(lease, outcomes, done, async key => last
      ? await this.step(lease, key)
      : await database.query('SELECT messages_delete($1::text, $2::bigint[], $3::text)', key))
    if (last && lease.returned) {
      await database.query('SELECT claim_release($1::text, $2::text)', [this.q, lease.claim])
      lease.returned = false
    }
  }

  /** Settles all of a list in one call, or if one of them is the reason of an error, one by one. */
  private async together (lease: Lease, outcomes: Outcome[], list: Outcome[],
    call: (key: unknown[]) => Promise<unknown>): Promise<void> {
    if (list.length === 0) return
    try {
      await call([this.q, list.map(o => o.task.job.id), lease.claim])
      for (const o of list) outcomes.splice(outcomes.indexOf(o), 1)
    } catch (error) {
      if (isPassing(error)) throw error
      await this.each(lease, outcomes, list)
    }
  }

  private async each (lease: Lease, outcomes: Outcome[], list: Outcome[]): Promise<void> {
    for (const outcome of list) {
      await this.settleOne(lease, outcome)
      outcomes.splice(outcomes.indexOf(outcome), 1)
    }
  }

  /** Completes the last messages of a claim, gives back what is to be given back, and claims more. */
  private async step (lease: Lease, key: unknown[]): Promise<void> {
    const limit = this.room()
    this.claiming += limit
    let rows
    try {
      ({ rows } = await this.host.database.query(
        `${MESSAGE} queue_step($1::text, $3::text, $2::bigint[], ttl => $4::int, "limit" => $5::int)`,
        [...key, this.host.ttl, limit]))
    } finally {
      this.claiming -= limit
    }
    lease.returned = false
    this.accept(rows, limit)
  }

  private async settleOne (lease: Lease, outcome: Outcome): Promise<void> {
    const { job } = outcome.task
    const call = async (name: string, ...more: unknown[]): Promise<any> => {
      const types = { message_retry: ['text', 'int'], message_bury: ['text'], message_complete: ['jsonb'] }[name]!
      const casts = types.map((type, i) => `, $${i + 4}::${type}`).join('')
      const { rows } = await this.host.database.query(
        `SELECT ${name}($1::text, $2::bigint, $3::text${casts}) AS value`, [this.q, job.id, lease.claim, ...more])
      return rows[0].value
    }
    try {
      const { error, snooze } = outcome
      if (snooze !== undefined) {
        await call('message_retry', null, Math.ceil(snooze))
        this.host.emit('snoozed', job, snooze)
      } else if (error instanceof PermanentError) {
        await call('message_bury', textOf(error))
        this.host.emit('failed', job, error, null)
      } else if ('error' in outcome) {
        const due = await call('message_retry', textOf(error), error instanceof RetryError ? Math.ceil(error.delay) : null)
        this.host.emit('failed', job, error, due)
      } else {
        await call('message_complete', outcome.result ?? null)
      }
    } catch (error) {
      if (isLost(error)) return void this.failure(outcome.task, error)
      if (isPassing(error)) throw error
      // A result that jsonb cannot hold costs an attempt; what cannot even be retried, such as
      // without the privilege, is free again when the claim expires.
      if ('error' in outcome || outcome.snooze !== undefined) {
        return this.host.emit('trouble', error, `message ${job.id} of ${this.q}`)
      }
      await this.settleOne(lease, { task: outcome.task, error })
    }
  }

  // --- claims that go on, or are lost ---

  /** Renews the claims, and learns what was canceled. */
  async renew (interval: number): Promise<void> {
    await Promise.all([...this.leases].map(async lease => {
      const start = performance.now()
      if (lease.lost || start - lease.renewed < interval / 2) return
      const before = [...lease.tasks]
      try {
        const { rows: [{ until, ids }] } = await this.host.database.query(
          `SELECT claim_renew($1::text, $2::text, $3::int) AS until,
             ARRAY(SELECT id::text FROM claim_messages($1::text, $2::text)) AS ids`,
          [this.q, lease.claim, this.host.ttl])
        if (until !== null) lease.renewed = start
        for (const task of before) {
          if (!ids.includes(task.job.id)) this.drop(task, until === null ? 'lost' : 'canceled')
        }
      } catch (error) {
        this.host.emit('trouble', error, `cannot renew a claim of ${this.q}`)
        if (performance.now() - lease.renewed > this.host.ttl * 1000) this.lose(lease)
      }
    }))
  }

  private lose (lease: Lease): void {
    lease.lost = true
    for (const task of [...lease.tasks]) this.drop(task, 'lost')
    this.leases.delete(lease)
    this.rest()
  }

  /** A message that is not ours any more. If all that a claim had was canceled, it looks lost. */
  private drop (task: Task, why: 'lost' | 'canceled'): void {
    const { lease } = task
    if (task.state === 'running') task.abort?.(new Aborted(why, why === 'lost' ? 'the claim was lost' : 'the message was canceled'))
    lease.returned = true // a release removes what was canceled
    if (task.state !== 'waiting') return
    this.waiting = this.waiting.filter(other => other !== task)
    this.end(task, null)
  }

  // --- the end ---

  /** Claims nothing more. */
  stop (): void {
    this.stopping = true
    clearTimeout(this.retry)
    this.retry = undefined
    this.giveBack()
    this.rest()
  }

  /** Gives back what has not begun. */
  private giveBack (): void {
    for (const task of this.waiting.splice(0)) {
      task.lease.returned = true
      this.end(task, null)
    }
  }

  /** Aborts what runs, to be given back. */
  abort (): void {
    for (const lease of this.leases) {
      for (const task of lease.tasks) task.abort?.(new Aborted('stop', 'the worker stops'))
    }
  }
}
