// What the library uses of the package pg, so that neither it nor its users need @types/pg

declare module 'pg' {
  import type { EventEmitter } from 'node:events'

  interface Result { rows: any[]; rowCount: number | null }

  class Client extends EventEmitter {
    constructor (config: object)
    processID: number | null
    connect (): Promise<void>
    query (text: string, values?: unknown[]): Promise<Result>
    end (): Promise<void>
    escapeLiteral (text: string): string
  }

  interface PoolClient extends Client { release (destroy?: boolean): void }

  class Pool extends EventEmitter {
    constructor (config: object)
    connect (): Promise<PoolClient>
    query (text: string, values?: unknown[]): Promise<Result>
    end (): Promise<void>
  }

  const pg: { Client: typeof Client; Pool: typeof Pool }
  export default pg
  export type { Client, Pool, PoolClient, Result }
}
