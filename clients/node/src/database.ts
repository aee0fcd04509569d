// The connections: a pool for the work, and transactions of jobs

import pg from 'pg'
import type { PoolClient } from 'pg'
import type { Client, QueueOptions } from './types.js'

export type Rows = Promise<{ rows: any[]; rowCount: number | null }>

/** What an error says, as PostgreSQL can store it */
export function textOf (error: unknown): string {
  let text: string
  try {
    const { message, code } = (error ?? {}) as any
    text = String(message ? error : code ?? error)
  } catch {
    text = 'an error that has no text'
  }
  return text.slice(0, 8000).replace(/\0|[\ud800-\udfff]/gu, '\ufffd')
}

export function codeOf (error: unknown): string {
  return String((error as any)?.code ?? '')
}

/** The claim is over, or the message is not in it, or was canceled. */
export function isLost (error: unknown): boolean {
  return ['QU001', 'QU002', 'QU004'].includes(codeOf(error))
}

/** Has it to do with the connection or the moment, so that the same may succeed later?
 *  Errors without an SQLSTATE are those of the network, or of pg. */
export function isPassing (error: unknown): boolean {
  const code = codeOf(error)
  return !/^[0-9A-Z]{5}$/.test(code) || code.startsWith('E') ||
    /^(08|25P03|40|53|55P03|57|58)/.test(code)
}

export class Database {
  readonly size: number
  private readonly pool
  private transactions = 0 // that hold a connection
  private readonly waiting: Array<() => void> = []

  constructor (private readonly options: QueueOptions) {
    this.size = Math.max(options.connections ?? 10, 2)
    this.pool = new pg.Pool({
      ...this.config(),
      max: this.size,
      min: 1,
      connectionTimeoutMillis: 10000
    })
    this.pool.on('error', () => {}) // an idle connection is lost: the pool forgets it
  }

  config (): object {
    const { connectionString, host, port, user, database, password, ssl, options, application_name } = this.options
    const given = { connectionString, host, port, user, database, password, ssl, options }
    return {
      ...Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)),
      application_name: application_name ?? process.env.PGAPPNAME ?? 'pg-claim-queue',
      keepAlive: true
    }
  }

  query (text: string, values?: unknown[]): Rows {
    return this.pool.query(text, values)
  }

  /** A connection that may be held for long. One is always left for what is short, so that
   *  a job that holds one never waits for another one that never comes. */
  async connect (): Promise<PoolClient> {
    if (this.transactions >= this.size - 1) await new Promise<void>(resolve => this.waiting.push(resolve))
    else this.transactions++
    try {
      const client = await this.pool.connect()
      client.on('error', ignore) // the next statement fails, too
      return client
    } catch (error) {
      this.next()
      throw error
    }
  }

  release (client: PoolClient, destroy: boolean): void {
    client.removeListener('error', ignore)
    if (destroy) client.on('error', ignore) // it may come while the connection is closed
    client.release(destroy)
    this.next()
  }

  /** The place of a connection goes to the one that has waited longest. */
  private next (): void {
    const resolve = this.waiting.shift()
    if (resolve) resolve()
    else this.transactions--
  }

  async end (): Promise<void> {
    await this.pool.end()
  }
}

function ignore (): void {}

/** The transaction of a job, which begins with its first statement */
export class Transaction implements Client {
  private client?: Promise<PoolClient>
  private over = false

  constructor (private readonly database: Database) {}

  get used (): boolean {
    return this.client !== undefined
  }

  async query (text: any, values?: any[]): Rows {
    if (this.over) throw new Error('the transaction of this job has ended')
    this.client ??= this.begin()
    return await (await this.client).query(text, values)
  }

  // The setting ends a statement soon after the process that waits for it.
  private async begin (): Promise<PoolClient> {
    const client = await this.database.connect()
    try {
      await client.query('BEGIN; SET LOCAL client_connection_check_interval = 1000')
    } catch (error) {
      this.database.release(client, true)
      throw error
    }
    return client
  }

  /** Runs this statement and commits; if that fails, nothing has happened. One message to the
   *  server has both, so that parameters are written as literals. Returns the rows. */
  async commit (text: string, values: Array<string | number | null>): Promise<any[]> {
    const client = (await this.take())!
    try {
      const literal = (value: string | number | null): string =>
        value === null ? 'NULL' : client.escapeLiteral(String(value))
      const statement = text.replace(/\$(\d+)/g, (_, n) => literal(values[Number(n) - 1]))
      const results: any = await client.query(`${statement}; COMMIT`)
      this.database.release(client, false)
      return results[0].rows
    } catch (error) {
      await this.end(client, false)
      throw error
    }
  }

  /** A statement may still be under way if the job was aborted: then the connection is closed. */
  async rollback (aborted: boolean): Promise<void> {
    const client = await this.take().catch(() => undefined)
    if (client) await this.end(client, aborted)
  }

  /** The connection, which can be given back once */
  private async take (): Promise<PoolClient | undefined> {
    const { client } = this
    this.over = true
    this.client = undefined
    return await client
  }

  private async end (client: PoolClient, destroy: boolean): Promise<void> {
    try {
      if (!destroy) await client.query('ROLLBACK')
    } catch {
      destroy = true
    }
    this.database.release(client, destroy)
  }
}
