#include "eval/perplexity_sums.h"

#include "base/check.h"

namespace kvasir {

void PerplexitySums::add(const ScoredToken& token) {
  ++tokens;
  nll += token.nll;
  if (keeps_nlls) nlls.push_back(token.nll);
  nll_squares += token.nll * token.nll;
  kept += token.kept;
  dead_share += token.dead_share;
  if (token.kld) klds.push_back(*token.kld);
  if (token.top1_agree) ++agreed;
  if (positions.count == 0) return;
  bins.resize(static_cast<std::size_t>(positions.count));
  Bin& bin = bins[positions.of(token.position)];
  ++bin.tokens;
  bin.position += static_cast<double>(token.position);
  bin.nll += token.nll;
  bin.kld += token.kld.value_or(0);
  bin.kept += token.kept;
}

void PerplexitySums::add(const PerplexitySums& other) {
  KVASIR_CHECK(positions.begin == other.positions.begin && positions.end == other.positions.end &&
               positions.count == other.positions.count);
  tokens += other.tokens;
  nll += other.nll;
  nll_squares += other.nll_squares;
  kept += other.kept;
  dead_share += other.dead_share;
  encodings += other.encodings;
  encoded += other.encoded;
  agreed += other.agreed;
  nlls.insert(nlls.end(), other.nlls.begin(), other.nlls.end());
  klds.insert(klds.end(), other.klds.begin(), other.klds.end());
  bins.resize(static_cast<std::size_t>(positions.count));
  for (std::size_t i = 0; i < other.bins.size(); ++i) {
    bins[i].tokens += other.bins[i].tokens;
    bins[i].position += other.bins[i].position;
    bins[i].nll += other.bins[i].nll;
    bins[i].kld += other.bins[i].kld;
    bins[i].kept += other.bins[i].kept;
  }
  pass_ms.insert(pass_ms.end(), other.pass_ms.begin(), other.pass_ms.end());
  times += other.times;
  timed_tokens += other.timed_tokens;
}

}  // namespace kvasir
