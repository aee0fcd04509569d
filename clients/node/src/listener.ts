// The connection that waits for all queues

import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import type { Client } from 'pg'
import { codeOf, type Database } from './database.js'

const FALLBACK = 30 // seconds between two looks at a server that sends notifications

export interface ListenerEvents {
  wake: (q: string) => void
  wakeAll: () => void
  listening: () => void
  polling: () => void
  trouble: (error: unknown) => void
}

/** A pause that grows with each failure */
export class Backoff {
  private delay = 500

  reset (): void {
    this.delay = 500
  }

  next (): number {
    const delay = this.delay * (0.5 + Math.random() / 2)
    this.delay = Math.min(this.delay * 2, 30000)
    return delay
  }
}

export class Listener {
  private readonly queues = new Set<string>()
  private readonly stopped = new AbortController()
  private client?: Client
  private polls = false
  private done: Promise<void> | undefined

  constructor (private readonly database: Database, private readonly poll: number,
    private readonly events: ListenerEvents) {}

  /** Waits for this queue, too. */
  async add (q: string): Promise<void> {
    this.queues.add(q)
    this.done ??= this.run()
    if (this.client) await this.listen(this.client, q)
  }

  async stop (): Promise<void> {
    this.stopped.abort()
    await this.client?.end().catch(() => {})
    await this.done
  }

  private async run (): Promise<void> {
    const backoff = new Backoff()
    const { signal } = this.stopped
    while (!signal.aborted) {
      try {
        if (this.polls) await this.look(this.database, this.poll)
        else await this.wait(backoff)
        backoff.reset()
      } catch (error) {
        if (signal.aborted) break
        this.events.trouble(error)
        await sleep(backoff.next(), undefined, { signal }).catch(() => {})
      }
    }
  }

  /** Listens until the connection is lost. */
  private async wait (backoff: Backoff): Promise<void> {
    const client = new pg.Client({
      ...this.database.config(), connectionTimeoutMillis: 10000, query_timeout: 30000
    })
    let fail: (error: Error) => void = () => {}
    const lost = new Promise<never>((_resolve, reject) => { fail = reject })
    lost.catch(() => {})
    client.on('error', (error: Error) => fail(error))
    client.on('end', () => fail(new Error('the connection was closed')))
    client.on('notification', (n: { payload: string }) => this.events.wake(n.payload))
    try {
      await client.connect()
      const { rows: [{ pid }] } = await client.query('SELECT pg_catalog.pg_backend_pid() AS pid')
      this.polls = pid !== client.processID // a pooler is in between
      for (const q of this.queues) if (!this.polls) await this.listen(client, q)
      if (this.polls) return this.events.polling()
      this.client = client
      for (const q of this.queues) await this.listen(client, q) // that were added meanwhile
      backoff.reset()
      this.events.listening()
      this.events.wakeAll() // what was missed
      for (;;) await Promise.race([lost, this.look(client, FALLBACK)])
    } finally {
      this.client = undefined
      client.end().catch(() => {})
    }
  }

  private async listen (client: Client, q: string): Promise<void> {
    try {
      const { rows: [{ channel }] } = await client.query('SELECT queue_channel($1::text) AS channel', [q])
      await client.query(`LISTEN ${channel}`)
    } catch (error) {
      if (codeOf(error) !== '0A000') throw error
      this.polls = true // a router of several servers
    }
  }

  /** Waits so many seconds, and wakes the queues that have something. */
  private async look (client: { query: Client['query'] }, seconds: number): Promise<void> {
    await sleep(seconds * 1000, undefined, { signal: this.stopped.signal })
    const { rows } = await client.query('SELECT q FROM queue_ready() AS q')
    for (const { q } of rows) this.events.wake(q)
  }
}
