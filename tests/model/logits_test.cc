// Logits against the double-precision reference model.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>

#include "support/engine_fixture.h"
#include "support/families.h"

namespace kvasir::test {
namespace {

struct Case {
  std::string name;
  RandomModelSpec spec;
  const char* kv_type;
  double bound;  // RMS error over RMS logits
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

RandomModelSpec spec_of(const char* dtype) {
  RandomModelSpec spec;
  spec.dtype = dtype;
  return spec;
}

template <class Change>
RandomModelSpec changed(Change change) {
  RandomModelSpec spec;
  change(spec);
  return spec;
}

// Activations are rounded to 8 bits per block of 32 before they meet quantised weights. The largest of 32 normal values
// is about 2.2 sigma, a step of 2.2 / 127 sigma has an RMS error of 0.5%, and the products with independent roundings
// on the way through two layers and the output (5 stages each, 1 more) add up to 0.5% * sqrt(11) = 1.7%; half as much
// again is spare.
constexpr double kQ8Bound = 2.5e-2;

// Activations that are rounded to bf16 have errors of at most 2^-8, and an RMS error of 0.17%; likewise * sqrt(11), and
// as much again is spare.
constexpr double kBf16Bound = 1.1e-2;

class Logits : public ::testing::TestWithParam<std::tuple<Case, std::string>> {};

TEST_P(Logits, AgreeWithTheReference) {
  const auto& [c, isa] = GetParam();
  const std::vector<std::byte> bytes = make_random_model(c.spec);
  const auto parsed = gguf::File::parse(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const ReferenceModel reference(*parsed);
  const std::vector<TokenId> tokens = random_tokens(150, c.spec.vocab, 7);
  const std::vector<double> want = flatten(reference.logits(std::vector<int>(tokens.begin(), tokens.end())));

  const TemporaryFile file(bytes);
  const auto model = load(file.path(), {.isa = isa, .kv_type = c.kv_type});
  ASSERT_NE(model, nullptr);
  const auto runner = new_runner(model, "full");
  const std::vector<float> got = all_logits(*runner, tokens, 64);
  ASSERT_EQ(got.size(), want.size());
  const double error = rms_error_ratio(got, want);
  RecordProperty("rms_error", fmt::format("{:.2e}", error));
  const bool rounds = c.spec.dtype == "bf16" && find_kernels(isa)->rounds_bf16_rows;
  EXPECT_LT(error, rounds ? kBf16Bound : c.bound);
  EXPECT_GT(error, 0) << "float arithmetic cannot equal double: the comparison compares nothing";
}

const std::vector<Case> kCases = {
    {"f32", spec_of("f32"), "f32", 1e-5},
    {"f32_f16_pages", spec_of("f32"), "f16", 1e-3},
    {"f32_bf16_pages", spec_of("f32"), "bf16", 1e-2},
    {"f16", spec_of("f16"), "f32", 1e-5},
    {"f16_f16_pages", spec_of("f16"), "f16", 1e-3},
    {"bf16", spec_of("bf16"), "f32", 1e-5},
    {"q8_0", spec_of("q8_0"), "f16", kQ8Bound},
    {"untied", changed([](auto& s) { s.tied = false; }), "f32", 1e-5},
    {"linear", changed([](auto& s) { s.rope_scaling = RopeScaling::kLinear; }), "f32", 1e-5},
    {"llama3", changed([](auto& s) {
       s.rope_scaling = RopeScaling::kLlama3;
       s.rope_base = 500000;
     }),
     "f32", 1e-5},
    {"one_kv_head", changed([](auto& s) { s.kv_heads = 1; }), "f32", 1e-5},
    {"no_grouping", changed([](auto& s) { s.kv_heads = 4; }), "f32", 1e-5},
    {"wide_heads", changed([](auto& s) {
       s.head_dim = 80;
       s.heads = 3;
       s.kv_heads = 1;
       s.d = 96;
     }),
     "f32", 1e-5},
    {"odd_sizes", changed([](auto& s) {
       s.head_dim = 20;
       s.d = 72;
       s.ffn = 100;
       s.vocab = 301;
     }),
     "f32", 1e-5},
    {"deep", changed([](auto& s) { s.layers = 8; }), "f32", 1e-5},
};

std::vector<Case> cases() {
  std::vector<Case> all = kCases;
  for (const FamilyCase& family : family_cases()) {
    all.push_back({"family_" + family.name, family.spec, "f32", 1e-5});
    all.push_back({"family_" + family.name + "_f16_pages", family.spec, "f16", 1e-3});
    RandomModelSpec f16 = family.spec;
    f16.dtype = "f16";
    all.push_back({"family_" + family.name + "_f16", f16, "f32", 1e-5});
  }
  // Rows in whole blocks of 256.
  for (const DType type : all_dtypes()) {
    if (!is_quantized(type)) continue;
    RandomModelSpec spec;
    spec.d = 256;
    spec.head_dim = 64;
    spec.ffn = 512;
    spec.dtype = dtype_traits(type).name;
    std::transform(spec.dtype.begin(), spec.dtype.end(), spec.dtype.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    all.push_back({"blocks_" + spec.dtype, spec, "f16", kQ8Bound});
  }
  return all;
}

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const std::string_view name : kernel_names()) names.emplace_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, Logits, ::testing::Combine(::testing::ValuesIn(cases()), ::testing::ValuesIn(isas())),
                         [](const auto& test) { return std::get<0>(test.param).name + "_" + std::get<1>(test.param); });

}  // namespace
}  // namespace kvasir::test
