#!/usr/bin/env bash
# Keys of DeepSpeed that tell nothing here pass silently at their neutral values, else with the reason.
. "$REPO/test/cli/common.bash"
tiny
cat >neutral.json <<'END'
{"timers": {"throughput": {"enabled": true, "synchronized": true}}, "graph_harvesting": false,
 "gradient_allreduce_op": "mean", "managed_gradient_accumulation": true,
 "zero_optimization": {"stage": 3, "enable_sanity_checks": false, "leaf_module": {}, "zenflow": null,
  "stage3_allgather_sequential": false, "stage3_partition_stream_chunk_size": 0,
  "parameter_alignment": false, "compute_grad_norm": true, "save_muon_momentum_buffer_in_memory": false}}
END
sed 's/false/X/g; s/true/false/g; s/X/true/g; s/"mean"/"sum"/; s/null/{"topk_ratio": 0.1}/; s/leaf_module": {/&"classes": ["A"]/' \
    neutral.json >other.json
try zerotrain plan --deepspeed_config neutral.json tiny.yaml | head -n 2
try zerotrain --device=cpu --deepspeed_config other.json tiny.yaml
cat >one_bit.json <<'END'
{"optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-3, "freeze_step": 400, "cuda_aware": false,
 "comm_backend_name": "nccl"}}}
END
try zerotrain --device=cpu --deepspeed_config one_bit.json tiny.yaml
# What conflicts may stand in two files: the message names both.
echo '{"zero_optimization": {"offload_param": {"device": "cpu"}}}' >offload.json
{ cat tiny.yaml; echo 'zero_optimization: {stage: 2}'; } >stage2.yaml
try zerotrain --device=cpu --deepspeed_config offload.json stage2.yaml
try zerotrain --device=cpu --deepspeed_config offload.json tiny.yaml
# A short trial of a long schedule.
try train --set scheduler.type=Cosine --set scheduler.params.warmup_steps=20 --log_dir=run tiny.yaml | steps
