// What a header says, read: rotary embeddings against numbers computed apart, and what is refused.
#include "model/config.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>

#include "model/family.h"
#include "support/gguf_writer.h"

namespace kvasir::test {
namespace {

using Change = std::function<void(gguf::Writer&)>;

// A header, and what a test adds to it. `feed_forward`: of the networks; 0: not said.
Result<ModelConfig> read(const std::string& architecture, const Change& change,
                         std::span<const Family* const> known = families(), std::uint32_t layers = 1,
                         float norm_eps = 1e-5F, std::uint32_t feed_forward = 64) {
  gguf::Writer writer;
  const auto key = [&](const char* name) { return architecture + "." + name; };
  writer.set_string("general.architecture", architecture);
  writer.set_uint32(key("block_count"), layers);
  writer.set_uint32(key("embedding_length"), 32);
  if (feed_forward > 0) writer.set_uint32(key("feed_forward_length"), feed_forward);
  writer.set_uint32(key("context_length"), 2048);
  writer.set_uint32(key("attention.head_count"), 2);
  writer.set_float32(
      key(architecture == "gptneox" ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon"), norm_eps);
  change(writer);
  writer.declare_tensor("token_embd.weight", 0, {32, 100});
  const std::vector<std::byte> bytes = writer.finish();
  const auto file = gguf::File::parse(bytes, {.header_only = true});
  if (!file.ok()) return file.status();
  return read_model_config(*file, known);
}

void expect_frequencies(const RotaryEmbedding& rope, const std::vector<double>& wanted) {
  ASSERT_EQ(rope.inverse_frequencies.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i)
    EXPECT_NEAR(rope.inverse_frequencies[i], wanted[i], 1e-6 * wanted[i]) << i;
}

// base^(-2i/16) for base 10000.
const std::vector<double> kPlain = {1, 0.316227766, 0.1, 0.0316227766, 0.01, 0.00316227766, 0.001, 0.000316227766};

std::vector<double> divided(double factor) {
  std::vector<double> out = kPlain;
  for (double& f : out) f /= factor;
  return out;
}

// Files whose layers all have experts need not say the size of other networks.
TEST(Config, FeedForwardLengthIsNeededWithoutExperts) {
  const auto without = [](const std::string& architecture, const Change& change) {
    return read(architecture, change, families(), 1, 1e-5F, 0);
  };
  const auto experts = without("qwen3moe", [](auto& w) {
    w.set_uint32("qwen3moe.expert_count", 8);
    w.set_uint32("qwen3moe.expert_used_count", 2);
    w.set_uint32("qwen3moe.expert_feed_forward_length", 16);
  });
  ASSERT_TRUE(experts.ok()) << experts.status().message();
  EXPECT_EQ(experts->layers.front().experts->hidden, 16);
  const Status neither = without("llama", [](auto&) {}).status();
  EXPECT_EQ(neither.code(), StatusCode::kDataLoss);
  EXPECT_NE(neither.message().find("llama.feed_forward_length is missing"), std::string::npos) << neither.message();
  // A dense first layer has no size then.
  const Status dense = without("qwen3moe", [](auto& w) {
                         w.set_uint32("qwen3moe.expert_count", 8);
                         w.set_uint32("qwen3moe.expert_used_count", 2);
                         w.set_uint32("qwen3moe.expert_feed_forward_length", 16);
                         w.set_uint32("qwen3moe.leading_dense_block_count", 1);
                       }).status();
  EXPECT_EQ(dense.code(), StatusCode::kDataLoss) << dense.message();
}

// Converters write expert_count = 0 into files of dense models.
TEST(Config, NoExpertsMayBeSaidAsZero) {
  for (const char* architecture : {"llama", "mistral3", "gemma4"}) {
    const auto dense = read(architecture, [&](auto& w) {
      w.set_uint32(std::string(architecture) + ".expert_count", 0);
      w.set_uint32(std::string(architecture) + ".attention.sliding_window", 512);
    });
    ASSERT_TRUE(dense.ok()) << architecture << ": " << dense.status().message();
    EXPECT_FALSE(dense->layers.front().experts) << architecture;
  }
}

TEST(Rope, LinearScalingHoweverItIsWritten) {
  const auto plain = read("llama", [](auto&) {});
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  expect_frequencies(plain->rotary.front(), kPlain);
  EXPECT_EQ(plain->rotary.front().magnitude, 1);
  const Change changes[] = {
      [](auto& w) {
        w.set_string("llama.rope.scaling.type", "linear");
        w.set_float32("llama.rope.scaling.factor", 4);
      },
      [](auto& w) { w.set_float32("llama.rope.scaling.factor", 4); },
      [](auto& w) { w.set_float32("llama.rope.scale_linear", 4); },
      [](auto& w) {
        w.set_string("llama.rope.scaling.type", "linear");
        w.set_float32("llama.rope.scale_linear", 4);
      },
  };
  for (const Change& change : changes) {
    const auto config = read("llama", change);
    ASSERT_TRUE(config.ok()) << config.status().message();
    expect_frequencies(config->rotary.front(), divided(4));
  }
  const auto none = read("llama", [](auto& w) {
    w.set_string("llama.rope.scaling.type", "none");
    w.set_float32("llama.rope.scaling.factor", 4);
  });
  ASSERT_TRUE(none.ok());
  expect_frequencies(none->rotary.front(), kPlain);
}

// Factor 4 over an original context of 512. The pair that turns n times over it is 16 ln(512 / (2 pi n)) / (2 ln
// 10000): 0.81 for n = 32, 3.82 for n = 1. So pair 0 is left alone (ramp from floor 0.81 = 0), pairs from 4 on are
// divided, and pairs 1, 2, 3 are a quarter, a half and three quarters of the way: f (1 - ramp) + f / 4 ramp.
TEST(Rope, YarnMixesFrequenciesByTheirTurns) {
  const Change yarn = [](gguf::Writer& w) {
    w.set_string("llama.rope.scaling.type", "yarn");
    w.set_float32("llama.rope.scaling.factor", 4);
    w.set_uint32("llama.rope.scaling.original_context_length", 512);
  };
  const auto config = read("llama", yarn);
  ASSERT_TRUE(config.ok()) << config.status().message();
  const double mixed[] = {1, 0.8125, 0.625, 0.4375, 0.25, 0.25, 0.25, 0.25};
  std::vector<double> wanted = kPlain;
  for (std::size_t i = 0; i < 8; ++i) wanted[i] *= mixed[i];
  expect_frequencies(config->rotary.front(), wanted);
  EXPECT_NEAR(config->rotary.front().magnitude, 1.138629436, 1e-8);  // 0.1 ln 4 + 1

  // Of 4 and 2 turns: pairs 2.62 and 3.22, so that the ramp is from 2 to 4.
  const auto narrow = read("llama", [&](auto& w) {
    yarn(w);
    w.set_float32("llama.rope.scaling.yarn_beta_fast", 4);
    w.set_float32("llama.rope.scaling.yarn_beta_slow", 2);
    w.set_float32("llama.rope.scaling.yarn_attn_factor", 1.5F);
    w.set_float32("llama.rope.scaling.attn_factor", 2);
  });
  ASSERT_TRUE(narrow.ok()) << narrow.status().message();
  EXPECT_NEAR(narrow->rotary.front().inverse_frequencies[2], 0.1, 1e-8);
  EXPECT_NEAR(narrow->rotary.front().inverse_frequencies[3], 0.0316227766 * 0.625, 1e-8);
  EXPECT_NEAR(narrow->rotary.front().inverse_frequencies[4], 0.01 / 4, 1e-8);
  EXPECT_EQ(narrow->rotary.front().magnitude, 3);

  const auto no_extrapolation = read("llama", [&](auto& w) {
    yarn(w);
    w.set_float32("llama.rope.scaling.yarn_ext_factor", 0);
  });
  ASSERT_TRUE(no_extrapolation.ok());
  expect_frequencies(no_extrapolation->rotary.front(), divided(4));
}

TEST(Rope, LongRopeNeedsBothTensorsAndItsOriginalContext) {
  const auto add = [](gguf::Writer& w, std::uint32_t original, std::uint64_t pairs = 8) {
    w.set_uint32("phi3.rope.scaling.original_context_length", original);
    w.declare_tensor("rope_factors_short.weight", 0, {8});
    w.declare_tensor("rope_factors_long.weight", 0, {pairs});
  };
  const auto config = read("phi3", [&](auto& w) { add(w, 512); });
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_TRUE(config->has_long_rotation());
  EXPECT_EQ(config->context_of(false), 512);
  EXPECT_EQ(config->context_of(true), 2048);
  EXPECT_NEAR(config->rotary.front().magnitude, 1.105541597, 1e-8);  // sqrt(1 + ln 4 / ln 512)
  const auto without = read("phi3", [](auto&) {});
  ASSERT_TRUE(without.ok()) << without.status().message();
  EXPECT_FALSE(without->has_long_rotation());
  EXPECT_EQ(without->context_of(false), 2048);

  const std::pair<const char*, Change> broken[] = {
      {"rope_factors_long.weight is missing",
       [](auto& w) {
         w.set_uint32("phi3.rope.scaling.original_context_length", 512);
         w.declare_tensor("rope_factors_short.weight", 0, {8});
       }},
      {"original_context_length",
       [](auto& w) {
         w.declare_tensor("rope_factors_short.weight", 0, {8});
         w.declare_tensor("rope_factors_long.weight", 0, {8});
       }},
      {"outside 2 to the trained context of 2048", [&](auto& w) { add(w, 4096); }},
      {"must hold 8 F32 values", [&](auto& w) { add(w, 512, 7); }},
      {"attn_factor",
       [&](auto& w) {
         add(w, 512);
         w.set_float32("phi3.rope.scaling.attn_factor", 0);
       }},
  };
  for (const auto& [what, change] : broken) {
    const Status status = read("phi3", change).status();
    EXPECT_FALSE(status.ok()) << what;
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  }
}

// A window that hides nothing within the context is none.
TEST(ModelConfig, PhiHasAWindowOnlyWhereItIsShorterThanTheContext) {
  for (const std::uint32_t window : {0u, 100u, 2047u, 2048u, 262144u}) {
    const auto config = read("phi3", [&](auto& w) { w.set_uint32("phi3.attention.sliding_window", window); });
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->governed().window, window < 2048 ? window : 0) << window;
  }
}

TEST(ModelConfig, Mamba2SizesMustFitEachOther) {
  const auto read_sizes = [](std::uint32_t taps, std::uint32_t heads, std::uint32_t groups, std::uint32_t inner) {
    return read(
        "granitehybrid",
        [&](auto& w) {
          w.set_int32s("granitehybrid.attention.head_count_kv", {0, 1});
          w.set_uint32("granitehybrid.ssm.conv_kernel", taps);
          w.set_uint32("granitehybrid.ssm.state_size", 16);
          w.set_uint32("granitehybrid.ssm.group_count", groups);
          w.set_uint32("granitehybrid.ssm.time_step_rank", heads);
          w.set_uint32("granitehybrid.ssm.inner_size", inner);
        },
        families(), 2);
  };
  const auto config = read_sizes(4, 4, 2, 64);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_TRUE(config->layers[0].state.has_value());
  EXPECT_FALSE(config->layers[1].state.has_value());
  for (const auto& [taps, heads, groups, inner] :
       std::vector<std::array<std::uint32_t, 4>>{{1, 4, 2, 64}, {4, 3, 2, 64}, {4, 4, 2, 63}})
    EXPECT_NE(read_sizes(taps, heads, groups, inner).status().message().find("contradict each other"),
              std::string::npos);
  for (const auto& [taps, heads, groups, inner] :
       std::vector<std::array<std::uint32_t, 4>>{{17, 4, 2, 64}, {4, 0, 2, 64}, {4, 4, 0, 64}, {4, 4, 2, 0x7fffffff}})
    EXPECT_NE(read_sizes(taps, heads, groups, inner).status().message().find("outside"), std::string::npos);
}

TEST(ModelConfig, RefusesWhatIsNotRun) {
  const std::pair<const char*, Change> changes[] = {
      {"attn_logit_softcapping", [](auto& w) { w.set_float32("llama.attn_logit_softcapping", 50); }},
      {"final_logit_softcapping", [](auto& w) { w.set_float32("llama.final_logit_softcapping", 30); }},
      {"logit_scale", [](auto& w) { w.set_float32("llama.logit_scale", 0.5F); }},
      {"embedding_scale", [](auto& w) { w.set_float32("llama.embedding_scale", 12); }},
      {"residual_scale", [](auto& w) { w.set_float32("llama.residual_scale", 0.2F); }},
      {"attention.scale", [](auto& w) { w.set_float32("llama.attention.scale", 0.1F); }},
      {"clamp_kqv", [](auto& w) { w.set_float32("llama.attention.clamp_kqv", 8); }},
      {"max_alibi_bias", [](auto& w) { w.set_float32("llama.attention.max_alibi_bias", 8); }},
      {"causal", [](auto& w) { w.set_bool("llama.attention.causal", false); }},
      {"sliding_window_pattern", [](auto& w) { w.set_uint32("llama.attention.sliding_window_pattern", 6); }},
      {"dimension_sections", [](auto& w) { w.set_uint32("llama.rope.dimension_sections", 6); }},
      {"value_length", [](auto& w) { w.set_uint32("llama.attention.value_length", 8); }},
      {"'longrope'", [](auto& w) { w.set_string("llama.rope.scaling.type", "longrope"); }},
      {"yarn_log_multiplier",
       [](auto& w) {
         w.set_string("llama.rope.scaling.type", "yarn");
         w.set_float32("llama.rope.scaling.yarn_log_multiplier", 0.1F);
       }},
  };
  for (const auto& [what, change] : changes) {
    const Status status = read("llama", change).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << what << ": " << status.message();
    const bool said = status.message().find(what) != std::string::npos || std::string_view(what) == "value_length";
    EXPECT_TRUE(said) << what << ": " << status.message();
  }
  const Status experts = read("qwen2", [](auto& w) { w.set_uint32("qwen2.expert_count", 8); }).status();
  EXPECT_EQ(experts.code(), StatusCode::kUnsupported);
  EXPECT_NE(experts.message().find("expert_count"), std::string::npos) << experts.message();
  for (const char* key : {"llama.logit_scale", "llama.embedding_scale", "llama.residual_scale"})
    EXPECT_TRUE(read("llama", [&](auto& w) { w.set_float32(key, 1); }).ok()) << key;
  const Status other = read("mamba", [](auto&) {}).status();
  EXPECT_EQ(other.code(), StatusCode::kUnsupported);
  EXPECT_NE(other.message().find("gemma2, gemma3, gemma4, glm4"), std::string::npos) << other.message();
}

TEST(ModelConfig, TheEpsilonOfNormsIsAboveZeroAndBelowOne) {
  for (const float eps : {0.0F, 1.0F}) {
    const auto config = read(
        "llama", [](auto&) {}, families(), 1, eps);
    ASSERT_FALSE(config.ok());
    EXPECT_EQ(config.status().message(),
              fmt::format("llama.attention.layer_norm_rms_epsilon is {}; it must be above 0 and below 1", eps));
  }
}

TEST(ModelConfig, SlidingWindowsAreLlamasAlone) {
  for (const std::string architecture : {"llama", "qwen2", "qwen3", "gptneox"}) {
    const auto config =
        read(architecture, [&](auto& w) { w.set_uint32(architecture + ".attention.sliding_window", 128); });
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->governed().window, architecture == "llama" ? 128 : 0) << architecture;
  }
}

// A policy decides alike for the layers that see all tokens, so their tables have to be alike.
TEST(ModelConfig, GovernedLayersDifferInWhetherTheyRotateAtMost) {
  const auto read_with = [](Status (*adjust)(Keys&, ModelConfig*)) {
    const Family family{.name = "mixed", .adjust = adjust};
    const Family* const known[] = {&family};
    return read(
        "mixed", [](auto&) {}, known, 2);
  };
  const auto config = read_with([](Keys&, ModelConfig* model) {
    model->rotary.emplace_back();
    model->layers[0].attention.rotary = 1;
    return Status();
  });
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->governed_layers(), 2);
  const auto expect_refused = [&](const char* why, Status (*adjust)(Keys&, ModelConfig*)) {
    const Status status = read_with(adjust).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << why;
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
  };
  expect_refused("rotate keys differently", [](Keys&, ModelConfig* model) {
    model->rotary.push_back(*plain_rotary_embedding(16, 500));
    model->layers[1].attention.rotary = 1;
    return Status();
  });
  expect_refused("differ in heads", [](Keys&, ModelConfig* model) {
    model->layers[1].attention.kv_heads = 1;
    return Status();
  });
  expect_refused("differ in heads", [](Keys&, ModelConfig* model) {
    model->layers[1].attention.heads = 4;
    return Status();
  });
  expect_refused("windows", [](Keys&, ModelConfig* model) {
    model->layers[0].attention.window = 100;
    model->layers[1].attention.window = 200;
    return Status();
  });
}

TEST(ModelConfig, GptNeoXResidualIsParallelUnlessTheFileSaysOtherwise) {
  EXPECT_TRUE(read("gptneox", [](auto&) {})->layers.front().parallel);
  EXPECT_FALSE(
      read("gptneox", [](auto& w) { w.set_bool("gptneox.use_parallel_residual", false); })->layers.front().parallel);
  EXPECT_FALSE(read("llama", [](auto&) {})->layers.front().parallel);
}

}  // namespace
}  // namespace kvasir::test
