#include "retention/registry.h"

namespace kvasir {
namespace {

class FullPolicy final : public RetentionPolicy {
 public:
  std::string spec() const override { return "full"; }
  std::optional<std::int64_t> bound() const override { return std::nullopt; }
  int rows_together(int want) const override { return want; }
  IndexRange advance() override { return {}; }
  IndexRange dropped() const override { return {}; }
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<FullPolicy>(); }
};

Result<std::unique_ptr<RetentionPolicy>> make(const PolicySpec&) {
  return {std::make_unique<FullPolicy>()};
}

}  // namespace

const PolicyInfo kFullPolicy{
    .name = "full",
    .summary = "keeps everything; ends with a visible reason when the context or the memory is full",
    .formula = "keep = all tokens",
    .reference = "ordinary attention",
    .options = {},
    .acts = "never: it drops nothing",
    .evaluation_only = false,
    .make = make,
};

}  // namespace kvasir
