"""docs/migration.md has the options of the former tools' tutorials, and names what exists here."""

from __future__ import annotations

import re

import pytest

from docs.pages import ROOT, all_options, command, option_names, resolves

TEXT = (ROOT / "docs/migration.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split(" | ")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("|---")
]

TUTORIALS = """
get_network tune_tasks tune_and_evaluate get_workload batch_size dtype from_mxnet get_model
extract_from_program extract_from_graph TaskExtractEnv config_space target_host log_filename
pick_best tuner xgb xgb-rank loss_type="rank" XGBTuner xgb_knob feature_type="knob" GATuner
pop_size RandomTuner GridSearchTuner gridsearch n_trial early_stopping use_transfer_learning
load_history load_from_file measure_option LocalBuilder LocalRunner RPCRunner number repeat
timeout min_repeat_ms check_correctness module_loader progress_bar log_to_file logging.getLogger
setLevel rpc_tracker rpc_server query_rpc_tracker --host --port --key --no-fork TVM_TRACKER_HOST
TVM_TRACKER_PORT apply_history_best tophub.context relay.build opt_level disabled_pass
AlterOpLayout export_library upload load_module GraphModule set_input time_evaluator benchmark
request_remote LocalSession cython3 autotvm.template create_schedule te.placeholder te.compute
autotvm.task.create get_config define_split apply bind parallel vectorize unroll assert_allclose
tvm.build get_env vta_config.json TARGET target_vta_cpu quantize global_scale skip_conv_layers
graph_pack start_name stop_name start_pack stop_pack env.BATCH env.BLOCK_OUT env.WGT_WIDTH
build_config reconfig_runtime program_fpga bitstream auto_scheduler.extract_tasks task_weights
workload_key compute_dag ConvertLayout layout TVM_NDK_CC build_func create_shared HardwareParams
max_threads_per_block TaskScheduler load_log_file TuningOptions num_measure_trials
measure_callbacks RecordToFile ApplyHistoryBest use_auto_scheduler measure_record --mode 800
"""
"""Options and calls of the tutorials for VTA, CUDA, Mali and the notes on an operator of one's own."""

HERE = re.compile(r"`([^`]+)`")


def ours() -> list[str]:
    """What the right column has in code style."""
    return [code for row in ROWS if len(row) == 2 for code in HERE.findall(row[1])]


@pytest.mark.parametrize("word", TUTORIALS.split())
def test_each_option_of_the_tutorials_is_in_a_left_column(word):
    assert any(word in row[0] for row in ROWS)


def test_each_counterpart_is_said():
    assert [row for row in ROWS if len(row) != 2 or not row[1]] == []
    assert len(ROWS) > 100


def test_commands_and_options_exist():
    known = all_options()
    wrong = []
    for code in ours():
        if code.startswith("tvmtune "):
            found, words = command(re.sub(r"[A-Z]+(\.\w+)?", "X", code).split()[1:])
            wrong += [code] if found is None else []
            names = option_names(found) if found else set()
        else:
            words, names = code.split(), known
        if code.startswith(("tvmtune ", "-")):
            wrong += [
                f"{code}: {w}" for w in words if w.startswith("-") and w.split("=")[0] not in names
            ]
    assert wrong == []
    assert {"--task-patience", "--transfer-from", "--run-timeout"} <= set(" ".join(ours()).split())


def test_python_names_exist():
    names = [n for code in ours() for n in re.findall(r"\btvmtune\.[\w.]+", code)]
    assert len(names) >= 4
    assert [name for name in names if not resolves(name)] == []


def test_tuners_and_attributes_exist():
    from tvmtune import host
    from tvmtune.tuning.tuners import ALIASES, TUNERS

    text = "\n".join(ours())
    tuners = set(re.findall(r"--tuner (\w[\w-]*)", text)) - {"metaschedule"}
    assert tuners
    assert tuners <= {*TUNERS, *ALIASES}
    for target in re.findall(r"--target (\w+)", text):
        assert host.backend(target)
