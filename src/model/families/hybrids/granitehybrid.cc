// Granite 4 hybrid (IBM 2025): Mamba-2 on most layers, attention without rotation on the others, Granite's factors, and
// perhaps experts beside a shared one.
#include "base/status.h"
#include "model/family.h"
#include "model/mixers/mamba2.h"

namespace kvasir {
namespace {

Result<Mamba2::Sizes> read_mamba2_sizes(Keys& keys) {
  Mamba2::Sizes sizes;
  KVASIR_ASSIGN_OR_RETURN(sizes.taps, keys.positive("ssm.conv_kernel", Mamba2::kMostTaps));
  KVASIR_ASSIGN_OR_RETURN(sizes.state, keys.positive("ssm.state_size", 4096));
  KVASIR_ASSIGN_OR_RETURN(sizes.groups, keys.positive("ssm.group_count", 1024));
  KVASIR_ASSIGN_OR_RETURN(sizes.heads, keys.positive("ssm.time_step_rank", 1u << 16));
  KVASIR_ASSIGN_OR_RETURN(const int inner, keys.positive("ssm.inner_size", 1u << 20));
  if (sizes.taps < 2 || sizes.heads % sizes.groups != 0 || inner % sizes.heads != 0)
    return data_loss("{}*: {} taps, {} groups, {} heads and an inner size of {} contradict each other",
                     keys.name("ssm."), sizes.taps, sizes.groups, sizes.heads, inner);
  sizes.head_dim = inner / sizes.heads;
  return sizes;
}

// Gives the layers without KV heads the recurrence.
Status read_mamba2_layers(Keys& keys, ModelConfig* model) {
  KVASIR_ASSIGN_OR_RETURN(const Mamba2::Sizes sizes, read_mamba2_sizes(keys));
  const auto mixer = std::make_shared<Mamba2>(sizes, model->norm_eps);
  const auto size = [](int n) { return static_cast<std::uint64_t>(n); };
  const std::uint64_t heads = size(sizes.heads), channels = size(mixer->channels()), groups = size(sizes.groups);
  for (std::size_t l = 0; l < model->layers.size(); ++l) {
    if (model->layers[l].attention.kv_heads != 0) continue;
    StateSpec state{
        .mixer = mixer,
        .inputs = {"ssm_in"},
        .output = "ssm_out",
        .parameters = {{"ssm_conv1d.weight", {size(sizes.taps), channels}},
                       {"ssm_dt.bias", {heads}},
                       {"ssm_a", {1, heads}},
                       {"ssm_d", {1, heads}},
                       {"ssm_norm.weight", {size(mixer->output()) / groups, groups}}},
    };
    if (keys.file().find_tensor(fmt::format("blk.{}.ssm_conv1d.bias", l)) != nullptr)
      state.parameters.push_back({"ssm_conv1d.bias", {channels}});
    model->layers[l].state = std::move(state);
  }
  return {};
}

// The file's logit_scale divides. Of experts, the softmax of the chosen outputs is that of all, divided by the sum of
// the chosen.
Status adjust_granitehybrid(Keys& keys, ModelConfig* model) {
  KVASIR_RETURN_IF_ERROR(read_scales(keys, model));
  model->logit_scale = 1 / model->logit_scale;
  KVASIR_RETURN_IF_ERROR(read_mamba2_layers(keys, model));
  bool rotates = true;
  if (keys.has("rope.scaling.finetuned")) {
    KVASIR_ASSIGN_OR_RETURN(rotates, keys.truth("rope.scaling.finetuned"));
  }
  if (!rotates) model->rotary.front() = {};
  return read_experts_if_any(keys, model, {.scores = ExpertScores::kSoftmaxOfChosen});
}

}  // namespace

const Family& granitehybrid_family() {
  static constexpr Family kFamily{
      .name = "granitehybrid",
      .covers = "Granite 4.0 H",
      .tensors = {.qkv_bias = Presence::kOptional, .other_biases = Presence::kOptional},
      .adjust = adjust_granitehybrid,
  };
  return kFamily;
}

}  // namespace kvasir
