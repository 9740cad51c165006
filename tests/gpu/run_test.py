"""tests/gpu/run with programs that fail, hang or are not there: it says so, ends in time, and its result is complete."""
import importlib.machinery
import importlib.util
import json
import os
import stat
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run")
LOADER = importlib.machinery.SourceFileLoader("gpu_run", PATH)
gpu_run = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_run", LOADER))
LOADER.exec_module(gpu_run)

PROGRAMS = gpu_run.SUITES + ["cuda_codec_bench", "gpu_nccl_job_test", "gpu_optimizer_job_test", "gpu_allreduce_bench"]
BENCH = """#!/bin/sh
while [ "$1" != --json ]; do shift; done
echo '{"encode float": {"ratio": 0.5}}' > "$2"
"""
ALLREDUCE = """#!/bin/sh
echo "{\\"ranks\\": $1, \\"bytes\\": $2, \\"transport\\": \\"${ONEBIT_TRANSPORT:-nccl}\\", \\"chunk\\": \\"${ONEBIT_CHUNK:-automatic}\\", \\"exact_over_nccl\\": 1.01, \\"speedup\\": 9.5}"
"""


class Script(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        os.mkdir(os.path.join(self.folder.name, "bin"))
        for name in PROGRAMS:
            self.program(name, "#!/bin/sh\nexit 0\n")
        self.program("cuda_codec_bench", BENCH)
        self.program("gpu_allreduce_bench", ALLREDUCE)
        self.program("python", "#!/bin/sh\nshift\necho \"did: $*\"\n")

    def tearDown(self):
        self.folder.cleanup()

    def program(self, name, text):
        path = os.path.join(self.folder.name, "bin", name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, stat.S_IRWXU)

    def run_script(self, *arguments):
        python = os.path.join(self.folder.name, "bin", "python")
        status = gpu_run.main(["--dry-run", "--no-build", "--build", self.folder.name, "--python", python, *arguments])
        with open(os.path.join(self.folder.name, "gpu-result.json"), encoding="utf-8") as file:
            result = json.load(file)
        return status, result, {step["name"]: step["status"] for step in result["steps"]}

    def test_all_well_is_success_with_every_step_and_figure_in_the_result(self):
        status, result, steps = self.run_script()
        self.assertEqual(status, 0)
        self.assertEqual(set(steps.values()), {"passed"})
        self.assertEqual(len(steps), len(gpu_run.SUITES) + 13)
        said = {step["name"]: step["output"] for step in result["steps"]}
        self.assertEqual(said["torch on CUDA tensors, 2 ranks"], "did: --stand-in --ranks 2\n")
        self.assertEqual(result["kernels"], {"encode float": {"ratio": 0.5}})
        self.assertEqual([(one["ranks"], one["transport"], one["chunk"]) for one in result["allreduces"]],
                         [(ranks, *way) for ranks in (2, 4) for way in
                          (("nccl", "automatic"), ("nccl", "1G"), ("tcp", "automatic"))])
        self.assertTrue(result["dry_run"])

    def test_a_program_that_fails_is_a_failure_and_the_others_still_run(self):
        self.program("gpu_codec_kernels_test", "#!/bin/sh\necho broken kernel\nexit 3\n")
        status, result, steps = self.run_script()
        self.assertEqual(status, 1)
        self.assertEqual(steps["gpu_codec_kernels_test"], "failed (3)")
        self.assertEqual(steps["gpu_allreduce_bench, 4 ranks, tcp"], "passed")
        self.assertIn("broken kernel", json.dumps(result["steps"]))

    def test_a_python_without_pytorch_is_a_failure_unless_it_is_left_out(self):
        self.program("python", "#!/bin/sh\necho No module named torch\nexit 1\n")
        status, result, steps = self.run_script()
        self.assertEqual(status, 1)
        self.assertEqual(steps["torch on CUDA tensors, 1 rank"], "failed (1)")
        self.assertIn("No module named torch", json.dumps(result["steps"]))
        status, result, steps = self.run_script("--without-torch")
        self.assertEqual(status, 0)
        self.assertNotIn("torch on CUDA tensors, 1 rank", steps)
        self.assertTrue(result["without_torch"])

    def test_a_program_that_is_not_there_is_a_failure(self):
        os.remove(os.path.join(self.folder.name, "bin", "gpu_nccl_job_test"))
        status, _, steps = self.run_script()
        self.assertEqual(status, 1)
        self.assertTrue(steps["gpu_nccl_job_test, nccl"].startswith("failed"))

    def test_what_hangs_is_killed_with_all_that_it_started(self):
        self.program("gpu_codec_vectors_test", "#!/bin/sh\nsleep 300 &\nsleep 300\n")
        status, _, steps = self.run_script("--seconds", "6")
        self.assertEqual(status, 1)
        self.assertEqual(steps["gpu_codec_vectors_test"], "timed out")
        self.assertEqual(steps["gpu_allreduce_bench, 4 ranks, tcp"], "no time left")


if __name__ == "__main__":
    unittest.main()
