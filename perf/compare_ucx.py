"""The part of perf/compare that holds the UCX transport against UCX's own ucx_perftest, on loopback.

Two processes, the same settings of UCX, one program after the other in each round: ucx_perftest's active messages, once as
it comes and once with the handling of a peer's failure (-e), which every connection of onebit has, then transport_perf. Over
TCP, and over shared memory, where only the setting UCX_MM_ERROR_HANDLING lets ucx_perftest -e run at all.
"""
import json
import os
import statistics
import subprocess
import tempfile
import time

NETWORKS = {"tcp": "tcp,self", "shared memory": "shm,self"}
PROGRAMS = ["ucx_perftest", "ucx_perftest -e", "onebit"]
SIZE, INFLIGHT, PINGS = 1 << 20, 8, 20000
LIMIT = 60  # seconds that one run may take


def environment(networks):
    return dict(os.environ, UCX_TLS=networks, UCX_NET_DEVICES="lo", UCX_MM_ERROR_HANDLING="y", UCX_WARN_UNUSED_ENV_VARS="n",
                ONEBIT_TRANSPORT="ucx", ONEBIT_SOCKET_IFNAME="lo")


def run_both(server, client, env, failure):
    """What the client writes, with the server beside it."""
    with subprocess.Popen(server, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as serving:
        try:
            time.sleep(0.7)
            done = subprocess.run(client, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)
            if done.returncode != 0:
                raise failure(f"{' '.join(client)}: {done.stderr.strip() or done.stdout.strip()}")
            serving.wait(timeout=LIMIT)
            return done.stdout
        except subprocess.TimeoutExpired as error:
            raise failure(f"{' '.join(client)}: no end within {LIMIT} s") from error
        finally:
            serving.kill()


def perftest(port, test, size, count, more, env, failure):
    """The columns of the last line: iterations, latency of the median, average and overall, MB/s average and overall, ..."""
    options = ["-p", str(port), "-t", test, "-s", str(size), "-n", str(count), "-w", "200", "-O", str(INFLIGHT), *more]
    text = run_both(["ucx_perftest", *options], ["ucx_perftest", "127.0.0.1", *options, "-f"], env, failure)
    return [float(word) for word in text.splitlines()[-1].split()]


def figures(program, port, args, env, failure):
    """Bandwidth in Gbit/s, and half a round trip of 8 bytes, the median, in microseconds."""
    if program == "onebit":
        perf = os.path.join(args.bin, "transport_perf")
        with tempfile.TemporaryDirectory(prefix="onebit-compare-") as folder:
            path = os.path.join(folder, "out.json")
            run_both([perf, "--listen", str(port)],
                     [perf, "--connect", f"127.0.0.1:{port}", "--poll", "--size", str(SIZE), "--inflight", str(INFLIGHT), "--buffers", "1",
                      "--seconds", str(args.seconds), "--pings", str(PINGS), "--json", path], env, failure)
            with open(path, encoding="utf-8") as file:
                found = json.load(file)
        return found["bandwidth_gbps"], found["latency_us"]
    more = ["-e"] if program.endswith("-e") else []
    # As many messages as take about the time that is asked for, at 1 GB/s.
    sent = perftest(port, "ucp_am_bw", SIZE, 1000 * args.seconds, more, env, failure)
    bounced = perftest(port + 1, "ucp_am_lat", 8, PINGS, more, env, failure)
    return sent[5] * (1 << 20) * 8 / 1e9, bounced[1]


def compare(args, problems, failure):
    rows, lines, port = [], [], 29500
    for network, networks in NETWORKS.items():
        env, found = environment(networks), {}
        for program in PROGRAMS * args.rounds:
            port += 2
            try:
                found.setdefault(program, []).append(figures(program, port, args, env, failure))
            except failure as error:
                problems.append(f"{network}, {program}: {error}")
        middle = {program: [statistics.median(column) for column in zip(*values)] for program, values in found.items()}
        for program, (bandwidth, latency) in middle.items():
            rows.append({"network": network, "program": program, "bandwidth_gbps": bandwidth, "latency_us": latency,
                         "rounds": found[program]})
        line = [network]
        for column in (0, 1):
            line += [f"{middle[program][column]:.2f}" if program in middle else "-" for program in PROGRAMS]
            base, own = middle.get("ucx_perftest -e"), middle.get("onebit")
            line.append(f"{own[column] / base[column]:.3f}" if base and own else "-")
        lines.append(line)
    return rows, lines


HEADERS = ["", "ucx_perftest, Gbit/s", "with -e", "onebit", "onebit/-e", "ucx_perftest, us", "with -e", "onebit", "onebit/-e"]
