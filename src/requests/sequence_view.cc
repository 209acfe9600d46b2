#include "requests/sequence_view.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/status.h"
#include "generation/token_stream.h"
#include "requests/request_group.h"
#include "requests/request_queue.h"

namespace kvasir {
namespace {

// Bounds of a view's time: a text's tokens are counted in at most kMostBuckets buckets, and page tables are examined
// until they hold kMostSlots tokens together.
constexpr std::int64_t kMostBuckets = 8192;
constexpr std::int64_t kMostSlots = std::int64_t{1} << 17;
constexpr int kMostTables = 32;

// Counts the tokens that tables keep, by bucket.
class KeptCounter {
 public:
  explicit KeptCounter(std::int64_t tokens) {
    while ((tokens >> shift_) > kMostBuckets) ++shift_;
    counts_.resize(static_cast<std::size_t>((tokens + bucket() - 1) >> shift_));
  }

  std::int64_t bucket() const { return std::int64_t{1} << shift_; }

  void add(TokenIndex begin, TokenIndex end) {
    for (TokenIndex token = begin; token < end;) {
      const TokenIndex next = std::min(end, ((token >> shift_) + 1) << shift_);
      counts_[static_cast<std::size_t>(token >> shift_)] += static_cast<std::uint32_t>(next - token);
      token = next;
    }
  }

  std::vector<TokenView::Kept> levels(std::int64_t tokens, int tables) const {
    std::vector<TokenView::Kept> runs;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      const std::int64_t size = std::min(bucket(), tokens - (static_cast<std::int64_t>(i) << shift_));
      const int level = level_of(counts_[i], size * tables);
      if (runs.empty() || runs.back().level != level) runs.push_back({0, level});
      ++runs.back().buckets;
    }
    return runs;
  }

 private:
  static int level_of(std::int64_t count, std::int64_t all) {
    if (count == 0) return 0;
    if (count == all) return TokenView::kLevels;
    const double share = static_cast<double>(count) / static_cast<double>(all);
    return std::clamp(static_cast<int>(std::lround(share * TokenView::kLevels)), 1, TokenView::kLevels - 1);
  }

  int shift_ = 0;
  std::vector<std::uint32_t> counts_;
};

void count_entry(const PageTable& table, const PageEntry& entry, KeptCounter& counter) {
  const int first = std::countr_zero(entry.live);
  const int last = static_cast<int>(std::bit_width(entry.live)) - 1;
  const TokenIndex begin = table.columns().index(entry.column, first);
  const TokenIndex end = table.columns().index(entry.column, last) + 1;
  if (end - begin == std::popcount(entry.live)) return counter.add(begin, end);
  for (SlotMask rest = entry.live; rest != 0; rest &= rest - 1) {
    const TokenIndex token = table.columns().index(entry.column, std::countr_zero(rest));
    counter.add(token, token + 1);
  }
}

// Counts a table's tokens and pages.
std::vector<TokenView::Pages> view_table(const PageTable& table, KeptCounter& counter) {
  std::vector<TokenView::Pages> pages;
  std::vector<bool> seen(table.pages().all().size() / static_cast<std::size_t>(table.pages().lanes()));
  for (const PageTable::Frame& frame : table.frames()) {
    for (const PageEntry& entry : table.entries_of(frame)) {
      if (entry.live == 0) continue;
      count_entry(table, entry, counter);
      if (seen[entry.column]) continue;
      seen[entry.column] = true;
      const int live = std::popcount(table.columns()[entry.column].live);
      if (pages.empty() || pages.back().live != live) pages.push_back({0, live});
      ++pages.back().pages;
    }
  }
  return pages;
}

SequenceView view_sample(const SampleInfo& sample) {
  SequenceView view;
  view.request = sample.request;
  view.label = sample.label;
  view.sample = sample.sample;
  view.policy = sample.policy->traits().spec;
  view.codec = codec_name(sample.codec);
  view.prompt_tokens = sample.task->prompt_tokens();
  view.tokens = sample.task->known_tokens();
  view.cached = sample.cached;
  view.state = sample.preempted ? SequenceView::State::kPreempted : SequenceView::State::kWaiting;
  if (sample.sequence == nullptr) return view;
  const KvSequence& tables = sample.sequence->tables();
  view.state = SequenceView::State::kRunning;
  view.seen = tables.next_index();
  view.kept = std::llround(tables.mean_stored());
  for (int t = 0; t < tables.tables(); ++t)
    view.pages += std::int64_t{tables.table(t).columns().count()} * tables.table(t).pages().lanes();
  view.bytes = sample.sequence->bytes();
  return view;
}

// Returns the index in the text of the first token that the task knows: it may continue a session.
std::int64_t first_known(const SampleInfo& sample) {
  return sample.sequence != nullptr ? sample.sequence->tables().next_index() - sample.task->tokens_run() : 0;
}

TokenView view_without_texts(const SampleInfo& sample) {
  TokenView view;
  view.sequence = view_sample(sample);
  view.sinks = sample.policy->traits().sinks;
  if (sample.sequence == nullptr) return view;
  view.page_slots = sample.sequence->cache()->shape().page.slots;
  view_tables(sample.sequence->tables(), view);
  return view;
}

bool is_control_or_marker(const Vocabulary& vocabulary, TokenId token) {
  return vocabulary.kinds[static_cast<std::size_t>(token)] == TokenKind::kControl || is_marker(vocabulary, token);
}

// Adds the texts of the tokens asked for. `tokens` begins with token `first_token` of the text.
void add_texts(const Tokenizer& tokenizer, std::span<const TokenId> tokens, std::int64_t first_token,
               const TokenQuery& query, TokenView& view) {
  const std::int64_t known = first_token + static_cast<std::int64_t>(tokens.size());
  view.first = std::clamp(query.first, first_token, known);
  const auto token_at = [&](std::int64_t index) { return tokens[static_cast<std::size_t>(index - first_token)]; };
  const std::int64_t answer = first_token + view.sequence.prompt_tokens;
  TokenStream stream(tokenizer, view.first == 0);
  if (view.first > first_token) {  // whether a token begins with a space depends on the one before it
    static_cast<void>(stream.push(token_at(view.first - 1)));
    static_cast<void>(stream.flush());
  }
  const std::int64_t end = std::min(known, view.first + std::max<std::int64_t>(query.most, 0));
  std::int64_t complete = view.first;
  for (std::int64_t index = view.first; index < end; ++index) {
    if (index == answer) {  // an answer is a text of its own, as for Generation
      if (!view.texts.empty()) view.texts.back() += stream.flush();
      stream = TokenStream(tokenizer, false);
    }
    const TokenId token = token_at(index);
    const bool control = is_control_or_marker(tokenizer.vocabulary(), token);
    std::string text = stream.push_shown(token);
    if (control) {
      // Here push_shown() returns text only for a character that earlier tokens began and never completed.
      if (!view.texts.empty()) view.texts.back() += std::exchange(text, {});
      text += tokenizer.bytes_of(token, true);
      view.controls.push_back(index);
    }
    view.texts.push_back(std::move(text));
    if (!stream.mid_character()) complete = index + 1;
  }
  // Tokens that end inside a character are returned with those that complete it; at the end of a text none do.
  if (complete == view.first || (view.sequence.state == SequenceView::State::kEnded && end == known)) {
    if (!view.texts.empty()) view.texts.back() += stream.flush();
  } else {
    view.texts.resize(static_cast<std::size_t>(complete - view.first));
  }
}

bool answers(const SampleInfo& sample, const TokenQuery& query) {
  return sample.label == query.label && sample.tenant == query.tenant && sample.sample == query.sample;
}

}  // namespace

void view_tables(const KvSequence& tables, TokenView& view) {
  KeptCounter counter(tables.next_index());
  view.bucket = counter.bucket();
  view.tables = tables.governed_tables();
  const std::int64_t largest = std::max<std::int64_t>(1, tables.longest());
  view.tables_shown =
      static_cast<int>(std::clamp<std::int64_t>(kMostSlots / largest, 1, std::min(kMostTables, view.tables)));
  for (int i = 0; i < view.tables_shown; ++i)
    view.pages.push_back(view_table(tables.table(i * view.tables / view.tables_shown), counter));
  view.kept = counter.levels(tables.next_index(), view.tables_shown);
}

void EndedViews::add(const SampleInfo& sample) {
  View kept{view_without_texts(sample), std::string(sample.label), sample.tenant, {}, first_known(sample)};
  kept.view.sequence.state = SequenceView::State::kEnded;
  if (sample.task->tokens().size() <= kMostTokens)
    kept.tokens.assign(sample.task->tokens().begin(), sample.task->tokens().end());
  tokens_ += kept.tokens.size();
  views_.push_back(std::move(kept));
  while (views_.size() > kMost || tokens_ > kMostTokens) {
    tokens_ -= views_.front().tokens.size();
    views_.pop_front();
  }
}

const EndedViews::View* EndedViews::find(const TokenQuery& query) const {
  const auto found = std::find_if(views_.rbegin(), views_.rend(), [&](const View& view) {
    return view.label == query.label && view.tenant == query.tenant && view.view.sequence.sample == query.sample;
  });
  return found == views_.rend() ? nullptr : &*found;
}

SampleInfo sample_info(const Request& request) {
  const RequestGroup& group = request.group();
  SampleInfo info;
  info.request = group.id;
  info.label = group.label;
  info.tenant = group.tenant;
  info.sample = request.sample();
  info.cached = group.prefix.cached;
  info.task = &request.task();
  info.sequence = request.sequence();
  info.policy = group.policy.get();
  info.codec = group.shape.codec();
  info.preempted = !request.holds_pages() && request.progress.preemptions > 0;
  return info;
}

SequenceList list_sequences(const RequestQueue& queue, int tenant, std::size_t most) {
  SequenceList list;
  queue.each_sample([&](const SampleInfo& sample) {
    if (sample.tenant != tenant) return;
    if (list.sequences.size() < most) {
      list.sequences.push_back(view_sample(sample));
    } else {
      ++list.left_out;
    }
  });
  return list;
}

Result<TokenView> view_tokens(const RequestQueue& queue, const Tokenizer& tokenizer, const TokenQuery& query) {
  TokenView view;
  bool found = false;
  queue.each_sample([&](const SampleInfo& sample) {
    if (!answers(sample, query)) return;
    found = true;
    view = view_without_texts(sample);
    add_texts(tokenizer, sample.task->tokens(), first_known(sample), query, view);
  });
  if (found) return view;
  if (const EndedViews::View* ended = queue.ended_views().find(query)) {
    view = ended->view;
    add_texts(tokenizer, ended->tokens, ended->first_token, query, view);
    return view;
  }
  return make_status(StatusCode::kNotFound, "there is no request '{}'", query.label);
}

}  // namespace kvasir
