// The bits of the engine (golden_file.h): what every policy, page type, model family and weight type gives with small
// models of random weights.
#include <fmt/core.h>

#include "golden/golden_file.h"
#include "sequence/policy_cases.h"
#include "support/families.h"
#include "support/originals.h"

namespace kvasir::test {
namespace {

struct GoldenCase {
  std::string name;  // without spaces
  RandomModelSpec model;
  std::string policy;
  std::string kv_type = "f16";
  int slots = 16;
  int chunk = 0;
  std::string original = {};  // of tests/reference/originals, in place of `model`; empty: none
};

// Models with the kinds of layers that random models do not have: soft caps, keys that layers share, latent attention,
// DeltaNet and experts, Mamba-2, short convolutions.
constexpr const char* kOriginals[] = {"gemma2", "gemma4", "deepseek_v2", "qwen35moe", "granitehybrid", "lfm2"};

// Retains tokens by range, which policy_cases.h leaves out.
const std::vector<std::string> kRangePolicies = {
    "full",
    "window:size=40",
    "streaming:sinks=4,window=36",
    "streaming:sinks=0,window=50,every=8",
    "streaming:sinks=20,window=40,every=5,slack=3,max_drop=4",
    "streaming:sinks=4,window=44,every=16,realign=rotate",
    "streaming:sinks=7,window=33,realign=rotate",
};

RandomModelSpec golden_spec() {
  RandomModelSpec spec = small_spec();
  spec.context = 150;  // pos=auto switches on the way
  return spec;
}

std::vector<GoldenCase> golden_cases() {
  std::vector<GoldenCase> cases;
  std::vector<std::string> policies = kRangePolicies;
  const std::vector<std::string> one_of_each = one_policy_of_each_kind();
  for (const PolicyCases& of_policy : all_policy_cases())
    policies.insert(policies.end(), of_policy.evicting.begin(), of_policy.evicting.end());
  for (const std::string& policy : policies)
    for (const char* type : {"f32", "f16", "bf16"})
      cases.push_back({fmt::format("llama/{}/{}", type, policy), golden_spec(), policy, type});
  for (const char* type : {"f32", "f16", "bf16"}) {
    RandomModelSpec spec = golden_spec();
    spec.layers = 3;  // the first two read everything
    spec.context = 256;
    cases.push_back({fmt::format("layers-3/{}/quest:budget=64", type), spec, "quest:budget=64", type});
  }
  for (const FamilyCase& family : family_cases(golden_spec()))
    for (const std::string& policy : one_of_each)
      cases.push_back({fmt::format("{}/{}", family.name, policy), family.spec, policy});
  for (const std::string& policy : one_of_each) {
    for (const int slots : {32, 64})
      cases.push_back({fmt::format("slots-{}/{}", slots, policy), golden_spec(), policy, "f16", slots});
    for (const int chunk : {1, 7, 19})
      cases.push_back({fmt::format("chunk-{}/{}", chunk, policy), golden_spec(), policy, "f16", 16, chunk});
  }
  for (const char* dtype : {"f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k",
                            "q6_k", "iq4_nl", "iq4_xs"}) {
    RandomModelSpec spec = golden_spec();
    spec.d = spec.ffn = 256;
    spec.heads = 8;
    spec.kv_heads = 4;
    spec.head_dim = 32;
    spec.dtype = dtype;
    for (const int chunk : {1, 2, 3, 5, 13, 32})
      cases.push_back({fmt::format("weights-{}/chunk-{}/full", dtype, chunk), spec, "full", "f16", 32, chunk});
  }
  for (const char* type : {"i16", "q8", "q4", "q4o", "q3", "q2", "k=q8,v=q4", "k=f16,v=q3"}) {
    RandomModelSpec spec = golden_spec();
    spec.head_dim = 32;
    for (const char* policy : {"full", "streaming:sinks=4,window=44,every=16,realign=rotate", "h2o:budget=24,recent=8"})
      for (const int slots : {16, 32})
        // What the name meant before codecs had a rotation of their own.
        cases.push_back({fmt::format("codec-{}-{}/{}", type, slots, policy), spec, policy,
                         codec_name(parse_stored_codec(type).codec), slots});
  }
  for (const char* type : {"f16", "i16", "q4"}) {
    RandomModelSpec spec = golden_spec();
    spec.head_dim = 32;
    spec.context = 256;
    for (const char* policy :
         {"h2o:budget=40,recent=10,pos=original@demote=q4", "streaming:sinks=4,window=36@demote=q8,recall=2"})
      cases.push_back(
          {fmt::format("demoting-{}/{}", type, policy), spec, policy, codec_name(parse_stored_codec(type).codec), 32});
  }
  for (const char* name : kOriginals)
    for (const std::string& policy : one_of_each)
      cases.push_back({.name = fmt::format("original-{}/{}", name, policy), .policy = policy, .original = name});
  return cases;
}

GoldenResult run_case(const GoldenCase& golden, std::string_view isa) {
  const EngineOptions options{
      .threads = 2, .isa = std::string(isa), .kv_type = golden.kv_type, .page_slots = golden.slots};
  const auto run = [&](const std::string& path, int vocabulary) {
    const auto model = load(path, options);
    if (model == nullptr) return GoldenResult{};
    return run_golden(model, golden.policy, random_tokens(230, vocabulary, 17), 180, golden.chunk);
  };
  if (!golden.original.empty()) return run(original(golden.original), kOriginalVocabulary);
  return run(TemporaryFile(make_random_model(golden.model)).path(), golden.model.vocab);
}

std::vector<std::string> names_of(const std::vector<GoldenCase>& cases) {
  std::vector<std::string> names;
  for (const GoldenCase& golden : cases) names.push_back(golden.name);
  return names;
}

class Golden : public ::testing::TestWithParam<std::string> {};

TEST_P(Golden, BitsAreThoseOfTheFile) {
  const std::vector<GoldenCase> cases = golden_cases();
  compare_with_file(GetParam(), names_of(cases), [&](std::size_t i) { return run_case(cases[i], GetParam()); });
}

TEST(GoldenFile, HasALineOfEachCaseAndNoOther) {
  expect_lines_of([](std::string_view) { return names_of(golden_cases()); }, false);
}

INSTANTIATE_TEST_SUITE_P(All, Golden, ::testing::Values("generic", "avx2", "avx512", "amx"),
                         [](const auto& table) { return table.param; });

}  // namespace
}  // namespace kvasir::test
