// What an engine's requests hold of their texts, for whoever watches them.
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
  std::string policy;              // canonical spec
  std::string codec;               // of its pages
  std::int64_t prompt_tokens = 0;  // of the prompt
  std::int64_t tokens = 0;         // of the prompt, and generated so far
  std::int64_t cached = 0;         // of the prompt, from the prefix cache
  // As in KvReport, of what it holds now; zero while it holds no pages. kEnded: of what it held last.
  std::int64_t seen = 0;
  std::int64_t kept = 0;
  std::int64_t pages = 0;  // of all its lanes, shared ones included
  std::uint64_t bytes = 0;
};

// Samples that have not ended.
struct SequenceList {
  std::vector<SequenceView> sequences;  // of one tenant, in the order in which they run
  std::int64_t left_out = 0;            // of the same tenant, for which there was no place in the list
};

struct TokenQuery {
  std::string label;  // of the request; of several, the newest
  int tenant = 0;     // its tenant
  int sample = 0;
  std::int64_t first = 0;   // first token whose text is wanted: 0, or TokenView::next() of an earlier view
  std::int64_t most = 512;  // texts at most
};

// Which tokens of one sample are kept, token by token and page by page.
//
// The cost of a view is bounded: of a long text, several neighbouring tokens are counted together (`bucket`), and of a
// policy whose layers or heads differ, only some page tables are looked at (`tables_shown`).
struct TokenView {
  // A series of buckets of tokens that are kept alike. level: 0 if no table looked at keeps any of them, kLevels if all
  // keep all, and otherwise the share that is kept, rounded to a level between.
  struct Kept {
    std::int64_t buckets = 0;
    int level = 0;
  };
  // A series of pages with as many live tokens each.
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
  int tables = 0;                         // page tables: 1, one for each layer, or one for each layer and KV head
  int tables_shown = 0;                   // of these, looked at
  std::vector<std::vector<Pages>> pages;  // by table looked at, oldest first

  // Text of tokens `first`, `first` + 1, ... A token that ends inside a character has an empty text, and the token that
  // completes it has all of it. Of a control token: its name.
  std::int64_t first = 0;
  std::vector<std::string> texts;
  std::vector<std::int64_t> controls;  // tokens, of those with texts, that are control tokens or markers

  std::int64_t next() const { return first + static_cast<std::int64_t>(texts.size()); }
};

}  // namespace kvasir
