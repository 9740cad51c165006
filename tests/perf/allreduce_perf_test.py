#!/usr/bin/env python3
"""allreduce_perf_test: what must be true of onebit_allreduce_perf.

  allreduce_perf_test.py PROGRAM WRONG_SUM_LIBRARY [unittest's arguments]

Runs it with small sizes as 1, 2, 4 and 7 ranks on this machine. Nothing here asserts a time.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = ""
WRONG_SUM = ""
PATIENCE = 60  # seconds; only a hang takes so long


def run(*arguments, **environment):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=PATIENCE,
                          env={**os.environ, **environment}, stdin=subprocess.DEVNULL)


def run_json(*arguments, **environment):
    """(the finished process, the JSON document)"""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "results.json")
        done = run(*arguments, "-J", path, **environment)
        with open(path) as file:
            return done, json.load(file)


def rows(output):
    return [line.split() for line in output.splitlines() if not line.startswith("#")]


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Results(unittest.TestCase):
    def check_both_modes(self, ranks):
        done, document = run_json("-R", str(ranks), "-b", "1K", "-e", "64K", "-f", "8", "-n", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(document["ranks"], ranks)
        self.assertTrue(document["device"])
        self.assertTrue(document["ok"])
        expected = {"size", "count", "type", "op", "mode", "time_us", "algbw", "busbw", "wire_bytes", "rel_l2_error",
                    "residual_error_100", "ranks_identical", "wrong"}
        for row in document["results"]:
            self.assertLessEqual(expected, set(row))
            self.assertEqual(row["wrong"], 0)
            self.assertEqual(row["in_place"]["wrong"], 0)
            self.assertTrue(row["ranks_identical"])
            self.assertEqual(row["size"], 4 * row["count"])
        self.assertEqual([row["size"] for row in document["results"] if row["mode"] == "exact"], [1024, 8192, 65536])
        return [row for row in document["results"] if row["mode"] == "1bit"]

    def check_one_bit(self, ranks):
        one_bit = self.check_both_modes(ranks)
        self.assertEqual([row["size"] for row in one_bit], [1024, 8192, 65536])
        for row in one_bit:
            self.assertGreater(row["rel_l2_error"], row["residual_error_100"] * 5)
            self.assertGreater(row["residual_error_10"], row["residual_error_100"] * 3)
        # Headers weigh little in 64 KiB: 16 is what DESIGN's formula leaves after generous headers.
        self.assertGreater(one_bit[-1]["wire_ratio"], 16)
        self.assertLess(one_bit[-1]["wire_ratio"], 32)

    def test_one_rank_is_right_in_both_modes(self):
        self.check_both_modes(1)

    def test_two_ranks_are_right_in_both_modes_and_residuals_work(self):
        self.check_one_bit(2)

    def test_four_ranks_are_right_in_both_modes_and_residuals_work(self):
        self.check_one_bit(4)

    def test_seven_ranks_are_right_in_both_modes_and_residuals_work(self):
        self.check_one_bit(7)

    def test_all_types_and_ops_are_right(self):
        done, document = run_json("-R", "3", "-b", "0", "-e", "4000", "-i", "1999", "-n", "1", "-w", "0", "-d", "all", "-o", "all")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = {(row["type"], row["op"], row["mode"]) for row in document["results"]}
        floating = [(type_, op) for type_ in ("half", "float", "bfloat16") for op in ("sum", "avg")]
        self.assertEqual(found, {(*one, mode) for one in floating for mode in ("exact", "1bit")}
                         | {("double", "sum", "exact"), ("double", "avg", "exact"), ("int32", "sum", "exact"),
                            ("int64", "sum", "exact")})
        # Sizes are rounded down to whole elements; 0 is a size.
        self.assertEqual({row["size"] for row in document["results"] if row["type"] == "double"}, {0, 1992, 3992})

    def test_block_scale_chunk_and_threads_are_used(self):
        for flags in (["--block", "256", "--scale", "mean"], ["--block", "whole"], ["--chunk", "1K", "--threads", "2"]):
            done, document = run_json("-R", "2", "-b", "40K", "-e", "40K", "-n", "2", "-M", "1bit", *flags)
            self.assertEqual(done.returncode, 0, done.stderr)
            name = {"--block": "ONEBIT_BLOCK", "--chunk": "ONEBIT_CHUNK"}[flags[0]]
            self.assertEqual(document["settings"][name], flags[1])
            self.assertEqual(len(document["results"]), 1)

    def test_a_wrong_exact_sum_is_counted_and_fails(self):
        done, document = run_json("-R", "2", "-b", "1K", "-e", "1K", "-n", "1", "-M", "exact", LD_PRELOAD=WRONG_SUM, WRONG_SUM="exact")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(document["results"][0]["wrong"], 1)
        self.assertFalse(document["results"][0]["ranks_identical"])
        self.assertFalse(document["ok"])
        self.assertIn("# Out of bounds values : 2 FAILED", done.stdout)

    def test_ranks_with_other_bytes_in_1_bit_are_seen_and_fail(self):
        done, document = run_json("-R", "3", "-b", "16K", "-e", "16K", "-n", "1", "-M", "1bit", LD_PRELOAD=WRONG_SUM, WRONG_SUM="1bit")
        self.assertEqual(done.returncode, 1)
        self.assertFalse(document["results"][0]["ranks_identical"])
        self.assertIn(" NO ", done.stdout)


class Output(unittest.TestCase):
    def test_readers_of_nccl_tests_can_read_it(self):
        done = run("-R", "2", "-b", "4K", "-e", "8K", "-f", "2", "-n", "2", "-g", "1", "-t", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        table = rows(done.stdout)
        self.assertEqual(len(table), 4)
        for row in table:
            self.assertEqual(int(row[0]), 4 * int(row[1]))
            self.assertEqual(row[2:5], ["float", "sum", "-1"])
            for group in (row[5:9], row[9:13]):
                seconds, algbw, busbw, wrong = (float(word) for word in group)
                self.assertGreater(seconds, 0)
                self.assertAlmostEqual(algbw, busbw, delta=0.02)  # 2 (W-1)/W is 1 for 2 ranks
                self.assertEqual(wrong, 0)
        self.assertRegex(done.stdout, r"(?m)^#  Rank  1 Group  0 Pid +\d+ on +\S+ device  1 \[")
        self.assertRegex(done.stdout, r"(?m)^#       size         count      type   redop    root     time   algbw   busbw  #wrong ")
        self.assertRegex(done.stdout, r"(?m)^# Out of bounds values : 0 OK$")
        self.assertRegex(done.stdout, r"(?m)^# Avg bus bandwidth    : [0-9.e-]+ ?$")

    def test_unchecked_results_are_not_called_right(self):
        done, document = run_json("-R", "2", "-b", "1K", "-e", "1K", "-n", "1", "-c", "0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("N/A", done.stdout)
        self.assertIsNone(document["results"][0]["wrong"])

    def test_print_config_shows_what_flags_and_environment_set(self):
        done = run("--print-config", "--block", "512", ONEBIT_SCALE="mean")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("ONEBIT_BLOCK=512  #", done.stdout)
        self.assertIn("ONEBIT_SCALE=mean  # ONEBIT_SCALE", done.stdout)


    def test_a_table_that_cannot_be_written_is_a_failure(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([PROGRAM, "-R", "1", "-b", "1K", "-e", "1K", "-n", "1"], stdout=full, stderr=subprocess.PIPE, text=True,
                                  timeout=PATIENCE)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("could not be written", done.stderr)


class BadArguments(unittest.TestCase):
    def check(self, wanted, *arguments, **environment):
        done = run(*arguments, **environment)
        self.assertEqual(done.returncode, 2)
        self.assertIn(wanted, done.stderr)
        self.assertEqual(done.stdout, "")

    def test_each_is_refused_with_its_name(self):
        self.check("--no-such-flag", "--no-such-flag")
        self.check("5X", "-R", "2", "-b", "5X")
        self.check("--minbytes", "-R", "2", "-b", "2M", "-e", "1M")
        self.check("int8", "-R", "2", "-d", "int8")
        self.check("--block", "-R", "2", "--block", "7")
        self.check("--scale", "-R", "2", "--scale", "max")
        self.check("--mode", "-R", "2", "-M", "1bit", "-d", "int32")
        self.check("--ngpus", "-R", "2", "-g", "8")
        self.check("--ranks", "-R", "0")
        self.check("/nowhere/results.json", "-R", "2", "-J", "/nowhere/results.json")

    def test_a_setting_of_the_environment_that_does_not_parse_is_named(self):
        self.check("ONEBIT_BLOCK=3", "-R", "2", ONEBIT_BLOCK="3")


class Processes(unittest.TestCase):
    """Runs that go on until something ends them."""

    def start(self):
        self.process = subprocess.Popen([PROGRAM, "-R", "4", "-N", "0", "-b", "64K", "-e", "64K", "-n", "5", "--error-elements", "0"],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.process.stdout.close)
        self.addCleanup(self.process.stderr.close)
        self.addCleanup(self.process.kill)
        for line in self.process.stdout:
            if not line.startswith("#"):
                break  # the first row: all ranks are at work
        ranks = children(self.process.pid)
        self.assertEqual(len(ranks), 4)
        return ranks

    def check_nothing_is_left(self, ranks):
        end = time.monotonic() + PATIENCE
        while any(alive(rank) for rank in ranks) and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual([rank for rank in ranks if alive(rank)], [])

    def test_a_killed_rank_ends_all_and_is_named(self):
        ranks = self.start()
        os.kill(ranks[2], signal.SIGKILL)
        _, errors = self.process.communicate(timeout=PATIENCE)
        self.assertEqual(self.process.returncode, 128 + signal.SIGKILL)
        self.assertIn(f"rank 2 (pid {ranks[2]}) was ended by SIGKILL", errors)
        self.check_nothing_is_left(ranks)

    def test_a_signal_ends_all(self):
        for sent in (signal.SIGINT, signal.SIGTERM):
            ranks = self.start()
            self.process.send_signal(sent)
            self.process.communicate(timeout=PATIENCE)
            self.assertEqual(self.process.returncode, 128 + sent)
            self.check_nothing_is_left(ranks)

    def test_a_stopped_rank_does_not_keep_the_others(self):
        ranks = self.start()
        os.kill(ranks[1], signal.SIGSTOP)
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=PATIENCE)
        self.check_nothing_is_left(ranks)

    def test_ranks_die_with_the_process_that_started_them(self):
        ranks = self.start()
        self.process.kill()
        self.process.communicate(timeout=PATIENCE)
        self.check_nothing_is_left(ranks)

    def test_whoever_starts_it_may_ignore_the_ends_of_children_and_hangups(self):
        done = subprocess.run([PROGRAM, "-R", "2", "-b", "1K", "-e", "1K", "-n", "2"], capture_output=True, text=True, timeout=PATIENCE,
                              preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        self.assertEqual(done.returncode, 0, done.stderr)
        under_nohup = subprocess.Popen([PROGRAM, "-R", "2", "-b", "4M", "-e", "4M", "-n", "300", "-M", "exact", "-c", "0"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        while len(children(under_nohup.pid)) < 2:
            time.sleep(0.01)
        under_nohup.send_signal(signal.SIGHUP)
        _, errors = under_nohup.communicate(timeout=PATIENCE)
        self.assertEqual(under_nohup.returncode, 0, errors)

    def test_an_interrupted_run_leaves_no_results(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "results.json")
            with open(path, "w") as file:
                file.write('{"of": "another run"}')
            process = subprocess.Popen([PROGRAM, "-R", "2", "-b", "1M", "-e", "1M", "-N", "0", "-J", path],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            while len(children(process.pid)) < 2:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE)
            self.assertEqual(os.listdir(folder), [])

    def test_a_launcher_may_start_the_ranks(self):
        port = subprocess.run([sys.executable, "-c", "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); "
                               "print(s.getsockname()[1])"], capture_output=True, text=True, check=True).stdout.strip()
        job = [subprocess.Popen([PROGRAM, "-b", "4K", "-e", "4K", "-n", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                                     "MASTER_PORT": port}) for rank in range(2)]
        outputs = [process.communicate(timeout=PATIENCE) for process in job]
        self.assertEqual([process.returncode for process in job], [0, 0], outputs)
        self.assertEqual(len(rows(outputs[0][0])), 2)
        self.assertEqual(outputs[1][0], "")  # only rank 0 prints


if __name__ == "__main__":
    PROGRAM, WRONG_SUM = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
