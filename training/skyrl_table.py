"""SkyRL's configuration as a table: the rows that `training.skyrl_keys` reads.

Facts taken from the dataclasses of `SkyRLTrainConfig` in skyrl 0.3.0 (https://github.com/NovaSky-AI/SkyRL,
module `skyrl.train.config.config`) and, for `environment.skyrl_gym`, from skyrl-gym 0.4.0. The training image carries a
newer commit of SkyRL, so a key that only the image knows is refused here: add its row, and its source, to the table.

The table is text, so that importing it costs a few milliseconds. A section header lists every place where the same rows
occur. A row is `name type default-as-JSON`; `?` after a type means that null is a value. The type `dict` is free: SkyRL
checks nothing below it. The type `section` is a section that is absent (null) until one of its keys is set.
"""

from __future__ import annotations

from typing import Final

TABLE: Final = """
[data]
train_data list[str] ["~/data/gsm8k/train.parquet"]
val_data list[str] ["~/data/gsm8k/validation.parquet"]

[data.dataloader]
num_workers int? null
persistent_workers bool false

[trainer]
use_expandable_segments bool true
sequence_parallel_backend str "ulysses"
strategy str "fsdp"
gradient_checkpointing bool true
gradient_checkpointing_use_reentrant bool false
seed int 42
resume_mode str? "latest"
resume_path str? null
log_path str "/tmp/skyrl-logs"
ckpt_path str "~/ckpts/"
max_ckpts_to_keep int -1
ckpt_interval int 10
hf_save_interval int -1
export_path str "~/exports/"
bf16 bool true
epochs int 1
max_training_steps int? null
update_epochs_per_batch int 1
train_batch_size int 1024
policy_mini_batch_size int 256
critic_mini_batch_size int 256
micro_train_batch_size_per_gpu int 1
micro_forward_batch_size_per_gpu int 1
max_tokens_per_microbatch int -1
recompute_old_logprobs_per_minibatch bool true
update_ref_every_epoch bool false
remove_microbatch_padding bool true
eval_batch_size int 1024
eval_before_train bool true
eval_interval int 5
max_prompt_length int 512
flash_attn bool true
disable_fast_tokenizer bool false
project_name str "skyrl"
run_name str "test_run"
logger str "wandb"
enable_ray_gpu_monitor bool true
tags list[str]? null
dump_data_batch bool false
dump_eval_results bool true
print_example_interval int 1
num_logger_eval_samples int -1
num_logger_train_samples int -1
log_example_interval int -1
logprobs_chunk_size int? 1024
fused_lm_head_logprob bool false
fused_lm_head_logprob_backend str "torch"

[trainer.placement]
colocate_all bool true
colocate_policy_ref bool true
policy_num_nodes int 1
policy_num_gpus_per_node int 1
critic_num_nodes int 1
critic_num_gpus_per_node int 1
ref_num_nodes int 1
ref_num_gpus_per_node int 1

[trainer.policy]
sequence_parallel_size int 1
use_torch_compile bool false
record_memory bool false
model_config_kwargs dict {}
language_model_only bool false
inference_only_init bool false

[trainer.policy.model]
path str? "Qwen/Qwen2.5-1.5B-Instruct"

[trainer.policy.model.lora trainer.ref.model.lora trainer.critic.model.lora]
rank int 0
alpha int 16
dropout float 0.0
lora_sync_path str "/tmp/skyrl_lora_sync"
target_modules str "all-linear"
exclude_modules str? null
init_method str "kaiming"
max_loras int 1
max_cpu_loras int? null

[trainer.policy.model.fake_int4_qat trainer.ref.model.fake_int4_qat trainer.critic.model.fake_int4_qat]
enabled bool false
group_size int 32
symmetric bool true
scale_divisor float 7.5
q_min float -8.0
bf16_base_path str? null

[trainer.policy.optimizer_config]
lr float 1e-06
adam_betas list[float] [0.9, 0.999]
weight_decay float 0.01
max_grad_norm float 1.0
offload_after_step bool true
num_warmup_steps int 0
scheduler str "constant_with_warmup"

[trainer.policy.fsdp_config trainer.ref.fsdp_config trainer.critic.fsdp_config]
cpu_offload bool false
reshard_after_forward bool|int true
fsdp_size int -1
mixed_precision section? null
wrap_policy dict {}

[trainer.policy.fsdp_config.mixed_precision trainer.ref.fsdp_config.mixed_precision \
trainer.critic.fsdp_config.mixed_precision]
param_dtype str "bf16"
reduce_dtype str "fp32"
buffer_dtype str "fp32"

[trainer.policy.torch_profiler_config]
enable bool false
ranks list[int] [0]
save_path str? null
skip_first int 10
wait int 0
warmup int 1
active int 1
repeat int 1
activities list[str] ["cpu", "cuda"]
record_shapes bool true
profile_memory bool false
with_stack bool true
with_flops bool false
with_modules bool false
export_type str "chrome_trace"

[trainer.policy.megatron_config trainer.ref.megatron_config]
tensor_model_parallel_size int 1
pipeline_model_parallel_size int 1
context_parallel_size int 1
expert_model_parallel_size int 1
expert_tensor_parallel_size int? null
moe_token_dispatcher_type str "alltoall"
moe_router_load_balancing_type str "none"
moe_aux_loss_coeff float 0.0
moe_grouped_gemm bool true
moe_router_score_function str? null
moe_router_enable_expert_bias bool? null
moe_enable_routing_replay bool false
moe_per_layer_logging bool false
moe_router_dtype str "fp32"
optimizer_config_kwargs dict {"overlap_cpu_optimizer_d2h_h2d": false, \
"use_precision_aware_optimizer": false, "optimizer_cpu_offload": false, "optimizer_offload_fraction": 0.0}
transformer_config_kwargs dict {"recompute_granularity": "full", \
"recompute_modules": ["core_attn"], "recompute_method": "uniform", \
"recompute_num_layers": 1, "gradient_accumulation_fusion": false}
empty_cuda_cache bool? true
model_config_kwargs dict {}
dist_ckpt_optim_fully_reshardable bool false
freeze_moe_router bool false
mtp_num_layers int? null
mtp_loss_weight float 0.1
mtp_loss_chunk_size int? 1024
mtp_loss_topk int? null

[trainer.policy.megatron_config.ddp_config trainer.ref.megatron_config.ddp_config]
grad_reduce_in_fp32 bool true
overlap_grad_reduce bool false
overlap_param_gather bool false
average_in_collective bool true

[trainer.policy.megatron_config.hf_export_config trainer.ref.megatron_config.hf_export_config]
distributed_save bool false
save_every_n_ranks int 1

[trainer.policy.megatron_config.lora_config trainer.ref.megatron_config.lora_config]
lora_type str "lora"
merge_lora bool true

[trainer.ref]
sequence_parallel_size int 1
model_config_kwargs dict {}
language_model_only bool false

[trainer.ref.model trainer.critic.model]
path str? null

[trainer.critic]
sequence_parallel_size int 1
model_config_kwargs dict {}

[trainer.critic.optimizer_config]
lr float 5e-06
adam_betas list[float] [0.9, 0.999]
weight_decay float 0.01
max_grad_norm float 1.0
offload_after_step bool true
num_warmup_steps int 0
scheduler str "constant_with_warmup"

[trainer.algorithm]
advantage_estimator str "grpo"
kl_estimator_type str "k3"
use_kl_in_reward bool false
use_kl_loss bool true
kl_loss_coef float 0.001
use_entropy_loss bool false
entropy_loss_coef float 0.01
temperature float? null
advantage_batch_normalize bool false
value_head_prefix str "value_head"
policy_loss_type str "regular"
loss_reduction str "token_mean"
grpo_norm_by_std bool true
zero_variance_filter bool false
zero_variance_filter_tol float 1e-06
lambd float 1.0
gamma float 1.0
eps_clip_low float 0.2
eps_clip_high float 0.2
clip_ratio_c float 3.0
tis_imp_ratio_cap float -1.0
use_tis bool false
value_clip float 0.2
max_seq_len int? null

[trainer.algorithm.kl_ctrl]
type str "fixed"
kl_target float 0.1
horizon int 10000

[trainer.algorithm.off_policy_correction]
tis_ratio_type str? null
token_tis_ratio_clip_high float 2.0
sequence_tis_ratio_clip_high float 5.0
sequence_mask_metric str? null
geo_mask_high float 1.01
geo_mask_low float 0.99
product_mask_high float 2.0
product_mask_low float 0.5
outlier_token_is_threshold_low float? null
outlier_token_is_threshold_high float? null
token_mask_is_threshold_low float? null
token_mask_is_threshold_high float? null

[trainer.algorithm.sapo]
tau_pos float 1.0
tau_neg float 1.05

[trainer.algorithm.dynamic_sampling]
type str? null
max_sample_batches int 30
min_replace_ratio float 0.3

[trainer.algorithm.clip_cov]
clip_ratio float 0.0002
clip_cov_lb float 1.0
clip_cov_ub float 5.0

[trainer.algorithm.kl_cov]
kl_cov_frac float 0.2
ppo_kl_coef float 1.0

[trainer.algorithm.cispo]
cispo_eps_clip_low float 0.0
cispo_eps_clip_high float 5.0

[trainer.algorithm.dppo]
dppo_type str "binary_tv"
delta_low float 0.2
delta_high float 0.2

[trainer.mtp]
enabled bool false
num_speculative_tokens int 1
loss_weight float 0.1

[trainer.fully_async]
enabled bool false
max_staleness_steps int 4
num_parallel_generation_workers int 768
sample_full_batch bool false
clear_kv_cache_on_weight_sync bool false
simulate_training bool false
simulate_training_step_seconds float 30.0
simulate_weight_sync_seconds float 0.0

[generator]
n_samples_per_prompt int 5
batched bool false
max_turns int 1
max_input_length int? null
chat_template_kwargs dict {}
use_conversation_multi_turn bool true
append_eos_token_after_stop_str_in_multi_turn bool true
eval_sampling_params section? null
eval_n_samples_per_prompt int 1
zero_reward_on_non_stop bool false
use_cache_salt bool true
apply_overlong_filtering bool false
step_wise_trajectories bool false
vision_language_generator bool false
merge_stepwise_output bool false

[generator.inference_engine]
model_dtype str "bfloat16"
run_engines_locally bool true
num_engines int 1
backend str "vllm"
weight_sync_backend str "nccl"
weight_transfer_threshold_cuda_ipc_GB float 1.0
tensor_parallel_size int 1
pipeline_parallel_size int 1
expert_parallel_size int 1
data_parallel_size int 1
vllm_v1_disable_multiproc bool true
enable_prefix_caching bool true
enable_chunked_prefill bool true
enable_return_routed_experts bool false
max_num_batched_tokens int 8192
enforce_eager bool false
fully_sharded_loras bool false
enable_ray_prometheus_stats bool true
gpu_memory_utilization float 0.8
use_expandable_segments bool false
max_num_seqs int 1024
served_model_name str? null
distributed_executor_backend str "ray"
language_model_only bool false
engine_init_kwargs dict {}
speculative_config dict? null
external_proxy_url str? null
external_server_urls list[str]? null
enable_pd bool false
num_prefill int 0
router_init_kwargs dict {}

[generator.chat_template]
source str "name"
name_or_path str? null

[generator.sampling_params generator.eval_sampling_params]
max_generate_length int 1024
repetition_penalty float 1.0
temperature float 1.0
top_p float 1.0
min_p float 0.0
top_k int -1
logprobs int? 1
stop list[str]? null
additional_kwargs dict? null

[environment]
env_class str "gsm8k"

[environment.skyrl_gym]
max_env_workers int 32

[environment.skyrl_gym.text2sql]
db_path str "/home/ray/default/sql_data"

[environment.skyrl_gym.llm_as_a_judge]
model str "gpt-4o-mini"
base_url str? null

[environment.skyrl_gym.search]
log_requests bool false
search_url str "http://127.0.0.1:8000/retrieve"
topk int 3
timeout int 30
"""
