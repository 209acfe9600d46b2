// The bits of the engine, compared with a file: tests/golden/bits.txt holds, for each arithmetic (kernel tables may
// share one), what every policy, page type, model family and weight type gave when the file was made. A change of it is
// a change of the arithmetic and must be meant: KVASIR_WRITE_GOLDEN=FILE makes this test write the file anew instead of
// comparing.
//
// The file holds on x86-64 with fused multiply-add and the mathematical library of glibc 2.36; elsewhere exp, sin and
// cos may differ in their last bit, and the test is skipped.
#include <fmt/core.h>
#include <gnu/libc-version.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "golden/golden_run.h"
#include "sequence/policy_cases.h"
#include "support/families.h"

namespace kvasir::test {
namespace {

struct GoldenCase {
  std::string name;  // without spaces
  RandomModelSpec model;
  std::string policy;
  std::string kv_type = "f16";
  int slots = 16;
  int chunk = 0;
};

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
  std::vector<std::string> one_of_each = {"full", "window:size=40", "streaming:sinks=4,window=36",
                                          "streaming:sinks=4,window=44,every=16,realign=rotate"};
  for (const PolicyCases& of_policy : all_policy_cases()) {
    policies.insert(policies.end(), of_policy.evicting.begin(), of_policy.evicting.end());
    one_of_each.push_back(of_policy.evicting.front());
  }
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
  for (const char* type : {"q8", "q4", "q4o", "q3", "q2", "k=q8,v=q4", "k=f16,v=q3"}) {
    RandomModelSpec spec = golden_spec();
    spec.head_dim = 32;
    for (const char* policy : {"full", "streaming:sinks=4,window=44,every=16,realign=rotate", "h2o:budget=24,recent=8"})
      for (const int slots : {16, 32})
        // What the name meant before codecs had a rotation of their own.
        cases.push_back({fmt::format("codec-{}-{}/{}", type, slots, policy), spec, policy,
                         codec_name(parse_stored_codec(type).codec), slots});
  }
  for (const char* type : {"f16", "q4"}) {
    RandomModelSpec spec = golden_spec();
    spec.head_dim = 32;
    spec.context = 256;
    for (const char* policy :
         {"h2o:budget=40,recent=10,pos=original@demote=q4", "streaming:sinks=4,window=36@demote=q8,recall=2"})
      cases.push_back(
          {fmt::format("demoting-{}/{}", type, policy), spec, policy, codec_name(parse_stored_codec(type).codec), 32});
  }
  return cases;
}

std::string line_of(const GoldenCase& golden, const GoldenResult& result) {
  return fmt::format("{} logits {:016x} kept {:016x} of {}", golden.name, result.logits, result.kept, result.retained);
}

std::string run_line(const GoldenCase& golden, std::string_view isa) {
  const TemporaryFile file(make_random_model(golden.model));
  const auto model =
      load(file.path(), {.threads = 2, .isa = std::string(isa), .kv_type = golden.kv_type, .page_slots = golden.slots});
  if (model == nullptr) return {};
  const bool of_weights = golden.name.starts_with("weights-");
  const auto tokens = random_tokens(of_weights ? 40 : 230, golden.model.vocab, 17);
  return line_of(golden, run_golden(model, golden.policy, tokens, of_weights ? 39 : 180, golden.chunk));
}

const char* unlike_this_machine() {
  if (std::string_view(gnu_get_libc_version()) != "2.36") return "the C library is not glibc 2.36";
  if (!__builtin_cpu_supports("fma")) return "the processor has no fused multiply-add";
  return nullptr;
}

std::string golden_file() {
  const char* root = std::getenv("KVASIR_SOURCE_DIR");
  return std::string(root != nullptr ? root : ".") + "/tests/golden/bits.txt";
}

// Lines of the file by "table case", the values alone.
std::map<std::string, std::string> read_golden() {
  std::map<std::string, std::string> lines;
  std::ifstream in(golden_file());
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    const std::size_t end = line.find(" logits ");
    if (end == std::string::npos) {
      ADD_FAILURE() << golden_file() << ": not a line of this test: " << line;
      continue;
    }
    lines.emplace(line.substr(0, end), line);
  }
  return lines;
}

class Golden : public ::testing::TestWithParam<std::string> {};

TEST_P(Golden, BitsAreThoseOfTheFile) {
  if (const char* reason = unlike_this_machine()) GTEST_SKIP() << "bits.txt does not hold here: " << reason;
  if (find_kernels(GetParam()) == nullptr) GTEST_SKIP() << "no kernels " << GetParam() << " on this machine";
  const KernelTable& table = *find_kernels(GetParam());
  std::ofstream out;
  if (const char* path = std::getenv("KVASIR_WRITE_GOLDEN")) out.open(path, std::ios::app);
  const std::map<std::string, std::string> expected = read_golden();
  std::set<std::string> names;
  for (GoldenCase golden : golden_cases()) {
    // Tables of one arithmetic have their lines in common. The table that it is named after writes them.
    if (out.is_open() && table.arithmetic != table.name) continue;
    golden.name = fmt::format("{}/{}", table.arithmetic, golden.name);
    names.insert(golden.name);
    const std::string line = run_line(golden, GetParam());
    if (out.is_open()) {
      out << line << '\n';
      continue;
    }
    const auto found = expected.find(golden.name);
    if (found == expected.end())
      ADD_FAILURE() << "bits.txt lacks " << golden.name;
    else
      EXPECT_EQ(line, found->second);
  }
  if (out.is_open()) return;
  // Every line of the arithmetic that this table is named after is of a case.
  for (const auto& [name, line] : expected) {
    const std::string arithmetic = name.substr(0, name.find('/'));
    EXPECT_TRUE(arithmetic != table.name || names.contains(name)) << "no case is called " << name;
  }
}

TEST(GoldenFile, HasLinesOfKnownArithmeticsAlone) {
  for (const auto& [name, line] : read_golden()) {
    const std::string arithmetic = name.substr(0, name.find('/'));
    EXPECT_TRUE(arithmetic == "generic" || arithmetic == "avx512" || arithmetic == "amx") << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Golden, ::testing::Values("generic", "avx2", "avx512", "amx"),
                         [](const auto& table) { return table.param; });

}  // namespace
}  // namespace kvasir::test
