#include "retention/held/held_scored.h"

#include <cmath>

#include "base/status.h"

namespace kvasir {
namespace {

ScoredPolicy::Traits with_held_traits(ScoredPolicy::Traits traits, const HeldScoredOptions& options) {
  traits.scope = PolicyScope::kHead;
  traits.whole = !options.blocks;
  if (options.rule.every == 0 && !options.blocks) traits.acts = ScoredPolicy::Acts::kAtPromptEnd;
  return traits;
}

}  // namespace

Result<HeldScoredOptions> HeldScoredOptions::read(const PolicyOptions& given) {
  HeldScoredOptions options;
  KVASIR_ASSIGN_OR_RETURN(options.rule, KeepRule::read(given));
  KVASIR_ASSIGN_OR_RETURN(options.blocks, get_blocks(given));
  return options;
}

HeldScoredPolicy::HeldScoredPolicy(Traits traits, const HeldScoredOptions& options)
    : ScoredPolicy(with_held_traits(std::move(traits), options)), options_(options) {}

// Returns how many tokens go at the end of a chunk, behind which `held` tokens are held.
std::int64_t HeldScoredPolicy::excess(const PolicyChunk& chunk, std::int64_t held) const {
  if (!acts({chunk, 0, chunk.rows - 1})) return 0;
  if (!chunk.prompt) return options_.rule.excess(held, chunk.end());
  return options_.blocks || chunk.ends_prompt() ? options_.rule.at_once().excess(held, chunk.end()) : 0;
}

std::int64_t HeldScoredPolicy::exact_prefix(std::int64_t n) const {
  n = std::max<std::int64_t>(n, 0);
  const KeepRule rule = options_.rule.at_once();
  if (options_.blocks) return rule.undropped(n);
  return rule.excess(n, n) > 0 ? n - 1 : n;
}

bool HeldScoredPolicy::wants_held(const PolicyChunk& chunk, int table) const {
  const ScoreList& list = this->list(table);
  const std::int64_t waiting = list.all() - list.size();
  return excess(chunk, list.size() + (waiting > 0 ? waiting : chunk.rows)) > 0;
}

void HeldScoredPolicy::read_held(const PolicyChunk& chunk, int table, HeldKv& kv) {
  ScoreList& list = this->list(table);
  enter(list, chunk);
  KVASIR_CHECK(list.all() == kv.tokens());
  score_held(table, kv, list.values().first(static_cast<std::size_t>(list.all())), excess(chunk, list.all()));
}

// As prune decides. (Of scores that are NaN beside infinite ones another may go where one goes.)
std::vector<bool> HeldScoredPolicy::staying(std::span<const double> scores, std::int64_t excess) const {
  std::vector<bool> stays(scores.size(), true);
  const auto first = static_cast<std::size_t>(std::min(rule().sinks, std::ssize(scores)));
  const auto last = static_cast<std::size_t>(std::max<std::int64_t>(std::ssize(scores) - rule().recent, 0));
  if (last <= first || excess <= 0) return stays;
  const std::span<const double> among = scores.subspan(first, last - first);
  ScoreList::Lowest lowest(among, std::min(excess, std::ssize(among)));
  for (std::size_t i = first; i < last; ++i) stays[i] = !lowest(scores[i]);
  return stays;
}

void HeldScoredPolicy::prune(ScoreList& list, const Step& step) {
  if (step.row + 1 < step.chunk.rows) return;
  const std::int64_t excess = this->excess(step.chunk, list.size());
  if (excess > 0) list.drop_lowest(excess, options_.rule.sinks, list.size() - options_.rule.recent, list.values());
}

Result<std::unique_ptr<RetentionPolicy>> HeldScoredPolicy::as_part(PolicyPart part) const {
  KVASIR_RETURN_IF_ERROR(check_blocks(options_.blocks, part, traits().spec));
  return ScoredPolicy::as_part(part);
}

std::int64_t newest_position(HeldKv& kv) {
  std::int64_t newest = 0;
  kv.visit(HeldKv::Sides::kNeither,
           [&](const HeldKv::Block& block) { newest = block.origin + block.kv.rotation(0, block.kv.rows - 1); });
  return newest;
}

double norm_of(std::span<const float> vector) {
  double square = 0;
  for (const float x : vector) square += double{x} * double{x};
  return std::sqrt(square);
}

namespace {

constexpr std::size_t kTogether = 4;  // rows

// Sets sums[r] to the sum over i, in order, of factor(rows[r][i], i).
template <class Factor>
void sum_rows(std::span<const float> rows, std::span<double> sums, const Factor& factor) {
  const std::size_t dim = sums.empty() ? 0 : rows.size() / sums.size();
  std::size_t r = 0;
  for (; r + kTogether <= sums.size(); r += kTogether) {
    const float* row = &rows[r * dim];
    double sum[kTogether] = {};
    for (std::size_t i = 0; i < dim; ++i)
      for (std::size_t k = 0; k < kTogether; ++k) sum[k] += factor(row[k * dim + i], i);
    std::ranges::copy(sum, sums.begin() + static_cast<std::ptrdiff_t>(r));
  }
  for (; r < sums.size(); ++r) {
    sums[r] = 0;
    for (std::size_t i = 0; i < dim; ++i) sums[r] += factor(rows[r * dim + i], i);
  }
}

}  // namespace

void norms_of(std::span<const float> rows, std::span<double> norms) {
  sum_rows(rows, norms, [](double x, std::size_t) { return x * x; });
  for (double& norm : norms) norm = std::sqrt(norm);
}

void products_of(std::span<const float> rows, std::span<const double> by, std::span<double> products) {
  sum_rows(rows, products, [&](double x, std::size_t i) { return x * by[i]; });
}

}  // namespace kvasir
