// What rotating keys again and again costs in precision, and frames do not.
//
//   rotation_drift MODEL TEXT [TOKENS [POLICY]]
//
// With a policy: the RMS difference of its logits with f16 and bf16 pages from those with f32 pages, which makes sense
// of one that does not look at attention. Otherwise: streams a text under streaming:sinks=4,window=252 with f32, f16
// and bf16 pages, realigned by frames and by rotation, and prints the RMS difference of the logits from f32 pages with
// frames, over their RMS, in stretches of 500 tokens.
#include <fmt/core.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "retention/registry.h"
#include "runtime/loaded_model.h"
#include "sequence/sequence_runner.h"

namespace kvasir {
namespace {

constexpr std::int64_t kStretch = 500;

[[noreturn]] void fail(const Status& status) {
  fmt::print(stderr, "rotation_drift: {}\n", status.message());
  std::exit(2);
}

template <class T>
T value_or_exit(Result<T> result) {
  if (!result.ok()) fail(result.status());
  return std::move(*result);
}

std::vector<float> logits_of(const std::string& path, const std::string& kv_type, const std::string& policy,
                             std::span<const TokenId> tokens) {
  const auto model = value_or_exit(load_model({.model = path, .kv_type = kv_type}, {}));
  const std::shared_ptr<KvCache> cache = value_or_exit(new_cache(model, std::uint64_t{1} << 28));
  SequenceRunner runner(model, cache, value_or_exit(make_policy(policy)));
  std::vector<float> out;
  const Status status =
      runner.feed(tokens, 1, SequenceRunner::Logits::kAll, [&](std::int64_t, int, std::span<const float> logits) {
        out.insert(out.end(), logits.begin(), logits.end());
        return true;
      });
  if (!status.ok()) fail(status);
  return out;
}

int run(const std::string& path, const std::string& text_path, std::int64_t count, const std::string& policy) {
  const auto model = value_or_exit(load_model({.model = path}, {}));
  const std::string text = value_or_exit(read_file(text_path, std::size_t{1} << 28));
  std::vector<TokenId> tokens = value_or_exit(model->tokenizer->encode(text, {}));
  if (static_cast<std::int64_t>(tokens.size()) < count) fail({StatusCode::kInvalidArgument, "the text is too short"});
  tokens.resize(static_cast<std::size_t>(count));
  const std::string frames = "streaming:sinks=4,window=252";
  const std::vector<float> exact = logits_of(path, "f32", policy.empty() ? frames : policy, tokens);
  const auto vocabulary = static_cast<std::int64_t>(model->config.vocabulary);
  fmt::print("{:<6} {:<7}", "pages", "realign");
  for (std::int64_t begin = 0; begin < count; begin += kStretch) fmt::print(" {:>9}", fmt::format("{}-", begin));
  fmt::print("\n");
  for (const char* type : {"f32", "f16", "bf16"}) {
    for (const char* realign : {"frames", "rotate"}) {
      if (!policy.empty() && realign == std::string("rotate")) continue;
      const std::vector<float> got =
          logits_of(path, type, policy.empty() ? frames + ",realign=" + realign : policy, tokens);
      fmt::print("{:<6} {:<7}", type, realign);
      for (std::int64_t begin = 0; begin < count; begin += kStretch) {
        double difference = 0;
        double size = 0;
        for (std::int64_t i = begin * vocabulary; i < std::min(begin + kStretch, count) * vocabulary; ++i) {
          const double want = exact[static_cast<std::size_t>(i)];
          const double error = got[static_cast<std::size_t>(i)] - want;
          difference += error * error;
          size += want * want;
        }
        fmt::print(" {:>9.2e}", std::sqrt(difference / size));
      }
      fmt::print("\n");
    }
  }
  return 0;
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) {
  if (argc < 3 || argc > 5) {
    fmt::print(stderr, "usage: rotation_drift MODEL TEXT [TOKENS [POLICY]]\n");
    return 2;
  }
  return kvasir::run(argv[1], argv[2], argc > 3 ? std::atoll(argv[3]) : 2500, argc > 4 ? argv[4] : "");
}
