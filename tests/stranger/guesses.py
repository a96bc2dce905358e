"""What newcomers type from memory of other programs: flags, ways to launch, subcommands, files and paths.

A guess is accepted (status 0, and where it names a setting the run's config holds it), answered (the message has the right flag, key or
command), or misleading. What is right was decided by what the other program means by it, not by what this one says.
"""

import os
import random
import re
import shlex
import tomllib

from . import program as of_program

# The share of guesses that must be accepted or answered.
ENOUGH = 0.9
N_ROWS = 400

# A flag for `train t.csv --target y`; the key and value that it sets, or -; and a pattern of the right answer where it isn't taken.
# Without a pattern the answer is the key.
FLAGS = r"""
# PyTorch Lightning
--max_epochs 2 | train.epochs=2 | --epochs
--max-epochs 2 | train.epochs=2 | --epochs
--max_steps 5 | train.steps=5 |
--min_epochs 1 | - | --epochs|early_stop
--accelerator cpu | - | --device
--accelerator gpu | - | --device|no (NVIDIA )?GPU
--devices 2 | - | launch
--num_nodes 2 | - | launch|--hosts
--strategy ddp | - | launch|data.parallel
--precision 32 | train.precision="f32" |
--precision bf16-mixed | train.precision="bf16" |
--precision 16-mixed | - | train\.precision.*(f16|bf16)
--precision 64 | - | train\.precision.*f32
--gradient_clip_val 1.0 | train.clip_grad_norm=1.0 |
--accumulate_grad_batches 2 | train.grad_accum_steps=2 |
--deterministic | train.deterministic=true |
--default_root_dir out | - | --out
--ckpt_path last | - | --resume
--val_check_interval 5 | train.eval_every_steps=5 |
--check_val_every_n_epoch 1 | - | eval_every_steps|after each epoch
--log_every_n_steps 10 | log.every_steps=10 |
--limit_train_batches 10 | - | train\.steps|--steps|--rows|stop_after_steps
--fast_dev_run | - | --dry-run
--enable_progress_bar false | - | --progress|--quiet|-q\b
--profiler simple | - | --trace
--logger tensorboard | - | log\.tensorboard
--detect_anomaly | - | on_nonfinite|not finite|non-?finite
--sync_batchnorm | - | norm
--auto_lr_find | - | find-lr
--stochastic_weight_avg | - | ema_decay|checkpoint average
# Trainer of Hugging Face
--learning_rate 0.01 | optimizer.lr=0.01 | --lr
--per_device_train_batch_size 16 | train.batch_size=16 | --batch-size
--per_device_eval_batch_size 16 | - | batch.size
--gradient_accumulation_steps 2 | train.grad_accum_steps=2 |
--num_train_epochs 2 | train.epochs=2 | --epochs
--warmup_steps 3 | schedule.warmup_steps=3 |
--warmup_ratio 0.1 | schedule.warmup_fraction=0.1 |
--lr_scheduler_type cosine | schedule.kind="cosine" |
--lr_scheduler_type linear | schedule.kind="linear" |
--weight_decay 0.1 | optimizer.weight_decay=0.1 |
--max_grad_norm 1.0 | train.clip_grad_norm=1.0 |
--adam_beta1 0.9 | - | optimizer\.betas
--adam_epsilon 1e-7 | optimizer.eps=1e-7 |
--optim adamw | optimizer.kind="adamw" |
--optim adamw_torch | - | optimizer\.kind
--label_smoothing_factor 0.1 | loss.label_smoothing=0.1 |
--output_dir out | - | --out
--overwrite_output_dir | - | --overwrite
--seed 3 | train.seed=3 |
--bf16 | train.precision="bf16" |
--fp16 | train.precision="f16" |
--tf32 true | - | train\.precision|tf32
--dtype bf16 | train.precision="bf16" |
--eval_strategy epoch | - | eval_every_steps|after each epoch
--eval_steps 5 | train.eval_every_steps=5 |
--save_steps 5 | checkpoint.every_steps=5 |
--save_total_limit 2 | checkpoint.keep=2 |
--load_best_model_at_end | - | keep_best|early_stop|best
--metric_for_best_model accuracy | - | keep_best|early_stop_metric
--resume_from_checkpoint true | - | --resume
--resume latest | - | --resume auto|no checkpoint.*auto|nothing to resume
--resume last | - | --resume auto|no checkpoint.*auto|nothing to resume
--resume true | - | --resume auto|no checkpoint.*auto|nothing to resume
--report_to tensorboard | - | log\.tensorboard
--report_to wandb | - | metrics\.jsonl|log\.tensorboard
--logging_steps 10 | log.every_steps=10 |
--logging_dir logs | - | --out|log\.tensorboard
--dataloader_num_workers 2 | data.loader_threads=2 |
--train_file u.csv | - | --data
--validation_file u.csv | - | --eval
--test_file u.csv | - | eval
--do_train | - | train
--do_eval | - | --eval|eval
--do_predict | - | predict
--model_name_or_path x | - | --init-from
--ddp_backend nccl | - | chosen|launch|NCCL|gpus
--local_rank 0 | - | launch
--deepspeed ds.json | - | comm\.zero
--torch_compile | - | cuda-graph|compil
--gradient_checkpointing | - | batch|memory|recompute|plan
# Keras
--epochs 2 | train.epochs=2 |
--epoch 2 | - | --epochs
--batch_size 16 | train.batch_size=16 | --batch-size
-b 16 | - | --batch-size
--bs 16 | train.batch_size=16 | --batch-size
--lr 0.01 | optimizer.lr=0.01 |
--validation_split 0.2 | data.eval_fraction=0.2 | --eval-fraction
--val_split 0.2 | data.eval_fraction=0.2 | --eval-fraction
--shuffle false | data.shuffle=false |
--no-shuffle | data.shuffle=false |
--class_weight balanced | loss.class_weights=* |
--patience 3 | train.early_stop_patience=3 |
--early_stopping 3 | - | early_stop_patience
--monitor val_loss | - | early_stop_metric|keep_best
--dropout 0.1 | model.dropout=0.1 |
--activation gelu | model.activation="gelu" |
--hidden 32,16 | model.hidden=[32, 16] |
--hidden 32 16 | model.hidden=[32, 16] |
--layers 2 | - | model\.(hidden|layers)|--hidden
--units 64 | - | model\.hidden|--hidden
--loss mse | - | loss\.kind
--loss mae | - | quantile
--loss sparse_categorical_crossentropy | - | cross_entropy
--optimizer adam | optimizer.kind="adam" |
--optimizer rmsprop | - | optimizer\.kind
--momentum 0.8 --optimizer sgd | optimizer.momentum=0.8 |
--metrics accuracy | - | eval_metrics
--verbose 0 | - | --quiet|-q\b|-v\b
--clipnorm 1.0 | train.clip_grad_norm=1.0 |
--normalize | - | data\.normalize
--callbacks EarlyStopping | - | early_stop|own code|docs/
# XGBoost and LightGBM
--objective binary:logistic | - | classification|loss\.kind.*(value|one of)|is no value
--objective reg:squarederror | - | regression|loss\.kind.*(value|one of)|is no value
--eta 0.1 | optimizer.lr=0.1 | --lr
--num_boost_round 10 | - | --epochs|train\.(steps|epochs)
--n_estimators 10 | - | --epochs|train\.(steps|epochs)
--early_stopping_rounds 5 | train.early_stop_patience=5 |
--max_depth 6 | - | model\.(hidden|layers)|--hidden
--num_leaves 31 | - | model\.hidden|--hidden|dense network
--eval_metric auc | - | eval_metrics
--lambda 0.1 | - | weight_decay
--subsample 0.8 | - | dropout|all rows|eval.fraction
--num_class 2 | - | data\.classes
--nthread 2 | - | --threads
--tree_method hist | - | dense network|no trees|trees|model\.kind
--categorical_feature a | - | --categorical
--label_column b | data.target="b" | --target
--ignore_column a | - | --drop
--scale_pos_weight 2 | - | class_weights
--task train | - | data\.task|classification
--task binary | data.task="classification" | classification
--task multiclass | data.task="classification" | classification
--verbosity 0 | - | --quiet|-q\b|-v\b
# scikit-learn
--random_state 3 | train.seed=3 |
--random-state 3 | train.seed=3 |
--test_size 0.2 | data.eval_fraction=0.2 | --eval-fraction
--max_iter 5 | - | train\.(epochs|steps)|--epochs
--alpha 0.1 | - | weight_decay
--solver adam | - | optimizer\.kind
--hidden_layer_sizes 32,16 | model.hidden=[32, 16] | --hidden
--learning_rate_init 0.01 | optimizer.lr=0.01 | --lr
--n_jobs 2 | - | --threads
-j 2 | - | --threads|loader_threads
--cv 5 | - | sweep|data\.split|eval.fraction
--scoring accuracy | - | eval_metrics
--stratify | data.stratify=true |
--tol 1e-4 | - | early_stop_min_delta
--missing mean | data.missing="mean" |
--scaler standard | - | data\.normalize
--verbose | - |
# torchrun, DeepSpeed, Accelerate
--nproc_per_node 2 | - | launch
--nproc-per-node=2 | - | launch
--nnodes 2 | - | launch
--node_rank 0 | - | launch
--master_addr localhost | - | launch
--rdzv_endpoint localhost:29500 | - | launch
--world_size 2 | - | launch
-n 2 | - | launch
--np 2 | - | launch
--gpus 2 | - | launch
--num_gpus 2 | - | launch
--num_processes 2 | - | launch
--num_machines 1 | - | launch
--mixed_precision bf16 | train.precision="bf16" |
--mixed_precision fp16 | train.precision="f16" |
--zero_stage 1 | comm.zero=1 |
--multi_gpu | - | launch
--cpu | - | --device
--gpu 0 | - | --device
--max_restarts 3 | - | launch
# Of all of them
--y b | data.target="b" | --target
--label b | data.target="b" | --target
--features a | - | --drop
--drop a b | data.drop=["a", "b"] | --drop
--categorical a b | data.categorical=["a", "b"] | --categorical
--cat_features a | - | --categorical
--name first | name="first" |
--run-name first | name="first" |
--run_name first | name="first" |
--experiment first | name="first" | name=|--out
--save-dir out | - | --out
-o out | - | --out
--force | - | --overwrite
--ema | - | ema_decay
--checkpoint old | - | --init-from|--resume
--checkpoint_every 5 | - | checkpoint\.every_steps
--pretrained x | - | --init-from
--schedule cosine | schedule.kind="cosine" |
--scheduler cosine | schedule.kind="cosine" |
--table u.csv | - | --data
--tensorboard | log.tensorboard=true |
--wandb | - | metrics\.jsonl|log\.tensorboard
--wandb-project p | - | metrics\.jsonl|log\.tensorboard
--mlflow | - | metrics\.jsonl|log\.tensorboard
--prometheus | - | --metrics-addr
--clip 1.0 | train.clip_grad_norm=1.0 |
--class-weight balanced | loss.class_weights=* |
--profile | - | --trace
--debug | - | -v+\b
--amp | - | train\.precision
--workers 2 | data.loader_threads=2 |
--num_workers 2 | data.loader_threads=2 |
--steps 5 | train.steps=5 |
--data-dir . | - | --data
--config run.toml | - | without|no flag|run\.toml
--device cuda:0 | - | no (NVIDIA )?GPU|CUDA|libcuda
--device gpu | - | --device|cuda
--device mps | - | cpu|cuda
--optimizer.lr=0.01 | optimizer.lr=0.01 |
--optimizer.lr 0.01 | optimizer.lr=0.01 |
optimizer.lr=0.01 | optimizer.lr=0.01 |
--set optimizer.lr 0.01 | optimizer.lr=0.01 | optimizer\.lr=0\.01
--set lr=0.01 | - | optimizer\.lr
--set optimizer.learning_rate=0.01 | - | optimizer\.lr
--set epochs=2 | - | train\.epochs
--set loss.kind=mae | - | quantile
--set loss.kind=l1 | - | quantile
--set optimizer.kind=Adam | - | "?adam"?
--set train.epochs=two | - | whole number
--set train.batchsize=16 | - | train\.batch_size
"""

# After `launch --launcher env`.
LAUNCHES = r"""
-n 2 -- run.toml | accepted
-n 2 run.toml | accepted
-np 2 -- run.toml | accepted
-np 2 run.toml | accepted
--np 2 run.toml | accepted
--nproc-per-node 2 -- run.toml | accepted
--nproc-per-node=2 run.toml | accepted
--nproc_per_node 2 run.toml | accepted
--ranks 2 -- train run.toml | accepted
--ranks 2 train run.toml --epochs 1 | accepted
-n 2 t.csv --target y | accepted
--hosts localhost:2 -- run.toml | accepted
--hostfile hosts run.toml | accepted
-H localhost:2 run.toml | --hosts
--host localhost:2 run.toml | --hosts
--gpus 2 run.toml | -n
--num-processes 2 run.toml | -n\b
--nnodes 2 run.toml | --hosts|-n\b
--world-size 2 run.toml | -n\b
-n two run.toml | number|auto
--max_restarts 1 -n 2 run.toml | --max-restarts
-n 2 ddp-train run.toml | -- |run\.toml
-n 2 python train.py | ddp-train train|arguments of|RUN\.toml
--nproc 2 run.toml | -n\b
"""

# A whole command, and a pattern of the right one.
COMMANDS = r"""
fit t.csv --target y | \btrain\b
run t.csv --target y | \btrain\b
start run.toml | \btrain\b
learn t.csv | \btrain\b
test old | \beval\b
evaluate old | \beval\b
evaluate --checkpoint old | \beval\b
validate run.toml | --dry-run
check run.toml | --dry-run|doctor
score old t.csv | \beval\b
inference old t.csv | \bpredict\b
infer --checkpoint old --data t.csv | \bpredict\b
serve old | docs/export|no server|checkpoint export|predict
deploy old | docs/export|checkpoint export
export old | checkpoint export
onnx old | checkpoint export
checkpoint convert old | checkpoint export
convert t.csv t.parquet | data convert
inspect t.csv | data inspect
analyze t.csv | data inspect
profile t.csv | data inspect|--trace|trace
show t.csv | data show
head t.csv | data show
preview t.csv | data show
data head t.csv | data show
data describe t.csv | data inspect
data check t.csv | data inspect
list | runs ls
ls | runs ls
runs list | runs ls
runs | runs ls|\bls\b
status old | runs show
info old | runs show|checkpoint show|describe
show old | runs show|checkpoint show
summary run.toml | describe
compare old other | runs diff
runs compare old other | runs diff
diff old other | runs diff
resume old | --resume
continue old | --resume
stop old | SIG|signal|kill|Ctrl
logs old | runs show|metrics\.jsonl|report
plot old | report
dashboard old | report|tensorboard
tensorboard old | tensorboard
tune run.toml | sweep
hpo run.toml | sweep
search run.toml | sweep
grid run.toml | sweep
lr-find run.toml | find-lr
find_lr run.toml | find-lr
batch-size run.toml | find-batch-size
checkpoint list old | checkpoint ls
checkpoints old | checkpoint ls
ckpt ls old | checkpoint ls
checkpoint info old | checkpoint show
checkpoint delete old | checkpoint prune
config show run.toml | --dry-run|config keys
config validate run.toml | --dry-run
config init | --write-config|config keys|data inspect
init | --write-config|data inspect|config keys
new project | --write-config|data inspect|config keys
keys | config keys
schema | config schema
gpus | devices
nvidia-smi | devices
diagnose | doctor
benchmark | \bbench\b
version | --version|ddp-train \d
eval old t.csv | accepted
predict old t.csv --out p.csv | accepted
eval --model old | --checkpoint
eval --checkpoint old --test u.csv | --data
eval --checkpoint old --batch-size 8 | batch
predict --model old --input t.csv --output p.csv | --checkpoint|--data|--out
predict old t.csv | --out
"""

# A whole command on files and paths, and a pattern of the right answer.
PATHS = r"""
tt.csv --target y | does not exist
t.CSV --target y | t\.csv
./t.csv --target y | accepted
parts --target y | accepted
parts/ --target y | accepted
'parts/*.csv' --target y | accepted
parts/0.csv parts/1.csv --target y | accepted
--data parts/0.csv parts/1.csv --target y | accepted
--data parts/0.csv --data parts/1.csv --target y | accepted
'parts/*.tsv' --target y | no (data )?file|match
t.csv --eval u.csv --target y | accepted
t.csv u.csv --target y | --eval|accepted
t.csv --target Y | "y"|`y`|: .*\by\b
t.csv --target yy | "y"|`y`|: .*\by\b
t.csv --target 2 | "y"|`y`|: .*\by\b
t.csv --target -1 | "y"|`y`|: .*\by\b
t.csv | --target
t.csv y | --target
copy --target y | accepted
old | --resume|complete|--checkpoint|eval
old --target y | --resume|config|rows|run
old/config.toml | old|accepted|--overwrite|--resume
old/model.safetensors | --init-from|--checkpoint|eval|model
config.json | TOML
run.json | TOML
run.yaml | TOML
gone.toml | does not exist
missing/t.csv --target y | does not exist
~nobody/t.csv --target y | does not exist|home|~
file://t.csv --target y | path|file://|local|does not exist
s3://bucket/t.csv --target y | S3|s3|local|download|copy
https://example.com/t.csv --target y | URL|http|download|local
'C:\data\t.csv' --target y | does not exist
link.csv --target y | link
- --target y | stdin|save|pipe
--data - --target y | stdin|save|pipe
empty.csv --target y | empty
latin.csv --target y | UTF-8|accepted
t.xlsx --target y | Excel
stray.csv --target y | missing_values|accepted
eval --checkpoint gone --data t.csv | does not exist|no (run|checkpoint|model)
eval --checkpoint t.csv --data t.csv | run folder|not a (model|run)|checkpoint|model\.safetensors
eval --checkpoint old --data other.csv | "a"|column
predict --checkpoint old --data t.csv --out p.xyz | \.csv
predict --checkpoint old --data t.csv --out t.csv | input|overwrite|exists
data inspect gone.csv | does not exist
data inspect parts | accepted
data convert t.csv t.xlsx --target y | \.csv|parquet|extension
"""


def prepare(folder, seed):
    """Tables, a config and whatever the paths name."""
    draw = random.Random(f"{seed} guesses")
    rows = [f"{draw.uniform(-1, 1):.3f},{draw.randrange(9)},{draw.random():.2f},{draw.randrange(2)}\n" for _ in range(N_ROWS)]
    whole = "a,b,c,y\n" + "".join(rows)
    (folder / "t.csv").write_text(whole)
    (folder / "u.csv").write_text(whole)
    for part in range(2):
        (folder / "parts").mkdir(exist_ok=True)
        (folder / f"parts/{part}.csv").write_text("a,b,c,y\n" + "".join(rows[part::2]))
    (folder / "copy").write_text(whole)
    (folder / "other.csv").write_text(whole.replace("a,b", "q,b", 1))
    (folder / "run.toml").write_text('[data]\ntrain = "t.csv"\ntarget = "y"\n[train]\nepochs = 1\n')
    (folder / "run.yaml").write_text("data:\n  train: t.csv\n  target: y\n")
    for name in ("config.json", "run.json"):
        (folder / name).write_text('{"data": {"train": "t.csv", "target": "y"}, "train": {"epochs": 1}}\n')
    (folder / "hosts").write_text("localhost slots=2\n")
    (folder / "empty.csv").write_text("")
    (folder / "latin.csv").write_bytes("a,b,c,y\n1,Zürich,3,0\n2,Köln,4,1\n".encode("latin-1") * 40)
    # The signature of a zip archive with the first member of a workbook.
    (folder / "t.xlsx").write_bytes(b"PK\x03\x04" + bytes(22) + b"\x13\x00\x00\x00[Content_Types].xml" + bytes(100))
    (folder / "stray.csv").write_text("a,b,c,y\n" + rows[0] + "oops,1,1,1\n" + "".join(rows[1:]))
    os.symlink("gone.csv", folder / "link.csv")


def entries(text):
    for line in text.strip().split("\n"):
        if not line.startswith("#"):
            yield [part.strip() for part in re.split(r"\s\|(?=\s|$)", line)]


def answer(ended, typed):
    """The message without what it repeats, and without usage and boilerplate."""
    lines = [line for line in ended.said.split("\n") if not line.startswith(("Usage:", "For more information")) and "cannot be used multiple times" not in line]
    text = "\n".join(lines)
    for word in typed:
        if len(word) > 2:
            # As quoted by the parser, not where the tip has it.
            text = re.sub(rf"(?<=error: )(.*)['\"`]{re.escape(word)}['\"`]", r"\1", text)
    return text


def holds(folder, key, value):
    """Whether the config of the run has a key's value."""
    try:
        found = tomllib.loads((folder / "guess/config.toml").read_text())
    except FileNotFoundError:
        found = tomllib.loads(next(path for path in folder.glob("**/config.toml") if path.parts[-2] != "old").read_text())
    if value == "*":
        value = None
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    wanted = value and tomllib.loads(f"value = {value}")["value"]
    return found is not None if wanted is None else found in (wanted, [wanted])


def flag(program, folder, typed, sets, pattern=""):
    """The verdict on a flag of `train`."""
    words = shlex.split(typed)
    own_out = any(word in ("out", "logs") for word in words)
    line = ["t.csv", *([] if "data.target" in sets else ["--target", "y"]), *words, *([] if own_out else ["--out", "guess"])]
    # Most runs need no more; where the guess says it itself, it is said once.
    if not re.search(r"epoch|steps|iter", typed):
        line += ["--epochs", "2"]
    ended = program.run(*line, cwd=folder)
    key, _, value = sets.partition("=")
    is_named = any(of and re.search(of, answer(ended, words)) for of in (pattern, sets != "-" and re.escape(key)))
    if ended.status == 0:
        # What sets no key of the config must say what it was taken for.
        return "accepted" if (is_named or not pattern if sets == "-" else holds(folder, key, value)) else "misleading", ended
    return "answered" if is_named else "misleading", ended


def command(program, folder, typed, pattern):
    """The verdict on a whole command."""
    words = shlex.split(typed)
    ended = program.run(*words, cwd=folder)
    if ended.status == 0:
        return "accepted", ended
    return "answered" if pattern != "accepted" and re.search(pattern, answer(ended, words)) else "misleading", ended


def check(program, folder, seed, counts, faults):
    counts.update(accepted=0, answered=0, misleading=0)
    trained = folder / "trained"
    trained.mkdir()
    prepare(trained, seed)
    program.run("t.csv", "--target", "y", "--epochs", "1", "--out", "old", "-q", cwd=trained).must_end()
    trials = [("flag", of, flag) for of in entries(FLAGS)]
    trials += [("launch", [f"launch --launcher env {of[0]}", *of[1:]], command) for of in entries(LAUNCHES)]
    trials += [("command", of, command) for of in entries(COMMANDS)]
    trials += [("path", of, command) for of in entries(PATHS)]
    misled = []

    def judge(name, trial):
        kind, (typed, *rule), of = trial
        own = folder / name
        # A run of its own, too: what one guess overwrites, the next doesn't see.
        os.makedirs(own)
        for path in trained.iterdir():
            if path.name != "old" or kind != "flag":
                copy(path, own / path.name)
        verdict, ended = of(program, own, typed, *rule)
        if verdict == "misleading":
            misled.append(f"{kind}: `{typed}`, expected {' | '.join(rule)}: {ended}")
        return [verdict, f"{kind} {verdict}"]

    of_program.each([(str(at), trial) for at, trial in enumerate(trials)], judge, counts, faults)
    total = len(trials)
    good = counts["accepted"] + counts["answered"]
    counts["guesses"], counts["percent"] = total, round(100 * good / total)
    for fault in misled:
        print(f"guesses: misleading {fault}", flush=True)
    if good < ENOUGH * total:
        faults.append(f"{good} of {total} guesses are accepted or answered, of at least {ENOUGH:.0%}")


def copy(source, target):
    if source.is_symlink():
        os.symlink(os.readlink(source), target)
    elif source.is_dir():
        os.mkdir(target)
        for path in source.iterdir():
            copy(path, target / path.name)
    else:
        target.write_bytes(source.read_bytes())
