"""Passes TCP connections on: the network that lies between the servers.

	forward.py PORT TO [PORT TO ...]

While this process is stopped (SIGSTOP) nothing passes, and nobody is told so:
connections neither end nor are refused.  What was sent meanwhile arrives when
it continues, as after a real partition.
"""
import asyncio
import sys


async def pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def listen(port, to):
    """Refuses connections while the server does."""
    refused = asyncio.Event()

    async def passed_on(reader, writer):
        try:
            there = await asyncio.open_connection("127.0.0.1", to)
        except OSError:
            writer.close()
            refused.set()
            return
        await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

    while True:
        refused.clear()
        server = await asyncio.start_server(passed_on, "127.0.0.1", port)
        await refused.wait()
        server.close()          # which lets the connections be
        while refused.is_set():
            await asyncio.sleep(0.1)
            try:
                (await asyncio.open_connection("127.0.0.1", to))[1].close()
                refused.clear()
            except OSError:
                pass


async def main(ports):
    await asyncio.gather(*map(listen, ports[::2], ports[1::2]))


asyncio.run(main([int(port) for port in sys.argv[1:]]))
