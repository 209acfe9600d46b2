// Views of the tokens that an engine's requests hold in the cache.
// Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvasir/request.h"

namespace kvasir {

// One sample of a request, as of the newest pass.
struct SequenceView {
  enum class State {
    kWaiting,    // has not started
    kPreempted,  // gave up its pages and waits to read its tokens again
    kRunning,
    kEnded,
  };
  RequestId request{};
  std::string label;  // RequestOptions::label
  int sample = 0;
  State state = State::kWaiting;
  std::string policy;  // canonical spec
  std::string codec;   // of its pages
  std::int64_t prompt_tokens = 0;
  std::int64_t tokens = 0;  // prompt tokens plus tokens generated so far
  std::int64_t cached = 0;  // prompt tokens from the prefix cache
  // As in KvReport; zero while the sample holds no pages. kEnded: the last values.
  std::int64_t seen = 0;
  std::int64_t kept = 0;
  std::int64_t pages = 0;  // over all its lanes, shared pages included
  std::uint64_t bytes = 0;
};

// Samples that have not ended.
struct SequenceList {
  std::vector<SequenceView> sequences;  // of one tenant, in the order in which they run
  std::int64_t left_out = 0;            // samples of the same tenant left out for lack of room
};

struct TokenQuery {
  std::string label;  // label of the request; the newest if several share it
  int tenant = 0;     // its tenant
  int sample = 0;
  std::int64_t first = 0;   // first token whose text is wanted: 0, or TokenView::next() of an earlier view
  std::int64_t most = 512;  // most texts returned
};

// Which tokens of one sample are kept, token by token and page by page.
//
// The cost of a view is bounded: in a long text, neighbouring tokens are counted together (`bucket`); if the layers or
// heads of a policy differ, only some page tables are examined (`tables_shown`).
struct TokenView {
  // A run of adjacent buckets with equal level: 0 if no examined table keeps any of their tokens, kLevels if all tables
  // keep all, otherwise the kept share rounded to a level in between.
  struct Kept {
    std::int64_t buckets = 0;
    int level = 0;
  };
  // A run of adjacent pages with equal numbers of live tokens.
  struct Pages {
    std::int64_t pages = 0;
    int live = 0;
  };
  static constexpr int kLevels = 8;

  SequenceView sequence;
  std::int64_t sinks = 0;                 // first tokens of the text that the policy never drops
  std::vector<Kept> kept;                 // of the first `sequence.seen` tokens
  std::int64_t bucket = 1;                // tokens
  int page_slots = 0;                     // tokens per page
  int tables = 0;                         // page tables: 1, one per layer, or one per layer and KV head
  int tables_shown = 0;                   // those examined
  std::vector<std::vector<Pages>> pages;  // by examined table, oldest first

  // Texts of tokens `first`, `first` + 1, ... If several tokens make one character, the last of them has its text and
  // the others are empty. A control token has its name.
  std::int64_t first = 0;
  std::vector<std::string> texts;
  std::vector<std::int64_t> controls;  // tokens in this view that are control tokens or markers

  std::int64_t next() const { return first + static_cast<std::int64_t>(texts.size()); }
};

}  // namespace kvasir
