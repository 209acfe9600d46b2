// Views of what requests hold, read off their page tables: kvasir/view.h.
// Thread-safety: that of the queue.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/view.h"
#include "scheduler/task.h"
#include "text/tokenizer.h"

namespace kvasir {

class Request;
class RequestQueue;

// What views report of one sample of a request.
struct SampleInfo {
  RequestId request{};
  std::string_view label;
  int tenant = 0;
  int sample = 0;
  std::int64_t cached = 0;  // prompt tokens from the prefix cache
  const Task* task = nullptr;
  const Sequence* sequence = nullptr;  // null while it holds no pages
  const RetentionPolicy* policy = nullptr;
  KvCodec codec;
  bool preempted = false;  // it was preempted and holds no pages
};

SampleInfo sample_info(const Request& request);

// The newest views of ended samples whose requests asked for it (RequestOptions::inspect): at most kMost, and at most
// kMostTokens tokens together.
class EndedViews {
 public:
  static constexpr std::size_t kMost = 32;
  static constexpr std::size_t kMostTokens = std::size_t{1} << 20;

  struct View {
    TokenView view;  // without texts
    std::string label;
    int tenant = 0;
    std::vector<TokenId> tokens;
    std::int64_t first_token = 0;  // index of tokens.front() in the text
  };

  // Keeps the view of a sample. REQUIRES: the sample still has its sequence, if it held one.
  void add(const SampleInfo& sample);
  const View* find(const TokenQuery& query) const;  // null if there is none

 private:
  std::deque<View> views_;
  std::size_t tokens_ = 0;
};

// Sets the parts of `view` about kept tokens and page tables.
void view_tables(const KvSequence& tables, TokenView& view);

SequenceList list_sequences(const RequestQueue& queue, int tenant, std::size_t most);
// Errors: kNotFound.
Result<TokenView> view_tokens(const RequestQueue& queue, const Tokenizer& tokenizer, const TokenQuery& query);

}  // namespace kvasir
