// The KV cache of one model: a budget, a pool of page numbers, and the page tables of the sequences that live in it.
// Sequences of different codecs share the budget and the pool.
//
// Thread-safety: none; one thread plans, appends and drops. A backend reads and writes the bytes of pages between those
// calls.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kv/layer_states.h"
#include "kv/page_pool.h"
#include "kv/page_table.h"
#include "kv/query_turn.h"

namespace kvasir {

// A KV group of layers with a sliding window, beside layers that see all tokens. The model decides its retention, not
// the policy: it keeps the last `window` tokens by index, at their original positions.
struct WindowGroup {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int rotation = 0;  // PageFormat::rotation
  Position window = 0;

  bool operator==(const WindowGroup&) const = default;
};

// Layers that hold a state of fixed size for each sequence, in place of keys and values (backend/state_mixer.h).
struct StateGroup {
  int layers = 0;
  std::uint64_t bytes = 0;  // for one sequence in one layer; a multiple of kStateAlign

  bool operator==(const StateGroup&) const = default;
};
inline constexpr std::uint64_t kStateAlign = 64;

// The lanes of a model. Layers that agree on KV heads, head dimension, window and rotation form a KV group; layers that
// policies govern may differ in rotation. The fields before `windows` describe the group that retention policies
// govern: the layers that see all tokens, or all layers if every layer has a window.
struct KvCacheShape {
  int layers = 0;
  int kv_heads = 0;
  PageFormat page;
  // A row attends to keys less than this many positions before it, in every layer; 0: to all. Tables of ranges give
  // back the pages outside the window.
  Position window = 0;
  int recent = 0;  // KvCodec::recent
  std::vector<WindowGroup> windows;
  std::vector<StateGroup> states;
  // [layers of the model]: 0 for a governed layer, 1 + w for a layer of windows[w], 1 + windows.size() + s for a layer
  // of states[s]. Empty: all layers are governed.
  std::vector<std::uint8_t> group_of_layer;
  // [layers of the model]: an earlier layer of the same group, whose lanes the layer reads and adds nothing to, or -1.
  // Such a layer counts in no group. Empty: -1 for all.
  std::vector<std::int16_t> lanes_of;
  // [governed layers]: rotation of the layer's keys. Empty: PageFormat::rotation for all. Layers that differ only in
  // rotation share a group, because their keys take the same room and are retained alike.
  std::vector<std::uint8_t> rotations;
  int unrotated = -1;  // the rotation that turns no key; -1: none of them
  // From a rotation to the one in its place with KvCodec::long_rotation; 0: the model has no others. Both kinds of
  // sequences have pages of one format.
  int long_shift = 0;
  bool long_rotation = false;  // the rotations in place are those of its page and of `rotations`
  QueryTurns turns;            // of the governed layers; of sequences without long_rotation
  QueryTurns long_turns;       // of the others; null: there are none
  int query_heads = 0;         // of a governed layer; pages do not depend on it, observations of policies do

  KvCodec codec() const {
    return {page.key, page.value, recent, page.hadamard_keys, page.hadamard_values, long_rotation};
  }
  // The same lanes in pages of another codec. REQUIRES: its long_rotation is false, or long_shift is not 0.
  KvCacheShape with(const KvCodec& codec) const;
  // The number that a batch adds to the rotations of layers (BatchSequence::rotation_shift).
  int rotation_shift() const { return long_rotation ? long_shift : 0; }
  // The next three concern the governed group.
  int lanes() const { return layers * kv_heads; }
  int tables(PolicyScope scope) const {
    return scope == PolicyScope::kSequence ? 1 : scope == PolicyScope::kLayer ? layers : lanes();
  }
  int lanes_per_table(PolicyScope scope) const { return lanes() / tables(scope); }
  // The governed group, or a window group, as a shape of its own, in which all layers are governed.
  KvCacheShape governed() const;
  KvCacheShape of(const WindowGroup& group) const;
  // The first layer of the governed group (0) or of windows[group - 1].
  int first_layer(int group) const {
    const auto found = std::ranges::find(group_of_layer, group);
    return found == group_of_layer.end() ? 0 : static_cast<int>(found - group_of_layer.begin());
  }
  // Returns the number, in the model, of a governed layer.
  int model_layer(int governed) const;
  // The widest window of the window groups, in tokens; 0 if there are none.
  Position widest_window() const;
  int all_lanes() const;              // of all KV groups
  std::uint64_t state_bytes() const;  // for one sequence, in all layers
};

// Holds the page tables of one sequence, and the states of its layers without lanes. Lanes that keep the same tokens
// share a table. The lanes that the policy governs have one table for all, one per layer or one per lane, as
// PolicyScope says. Behind these tables follows one for each window group. A sequence takes its states with its first
// token. Move-only. Gives its references to pages back with the object.
class KvSequence {
 public:
  PolicyScope scope() const { return scope_; }
  const KvCodec& codec() const { return codec_; }
  int tables() const { return static_cast<int>(tables_.size()); }
  int governed_tables() const { return governed_; }
  // Where the lanes of each layer of the model are.
  std::span<const LayerLanes> layers() const { return layers_; }
  PageTable& table(int index) { return tables_[static_cast<std::size_t>(index)]; }
  const PageTable& table(int index) const { return tables_[static_cast<std::size_t>(index)]; }
  // The only table. REQUIRES: PolicyScope::kSequence.
  PageTable& only_table() { return tables_.front(); }
  const PageTable& only_table() const { return tables_.front(); }

  TokenIndex next_index() const { return tables_.front().next_index(); }  // tokens seen so far
  // Ends a pass (PageTable::end_pass). Does nothing if pages are not encoded.
  void end_pass() {
    for (PageTable& table : tables_) table.end_pass();
  }
  // Gives back the pages that no later token can see (PageTable::give_back): of all tables, or only of window groups.
  enum class Groups { kAll, kWindows };
  void give_back(Groups groups = Groups::kAll);
  // The least length to which a text whose tokens are all retained may be cut: everything that the next token attends
  // to still has pages. 0 while nothing was given back.
  TokenIndex truncatable_from() const;

  // The next four concern the governed tables.
  std::int64_t longest() const;   // tokens retained by the table that retains the most
  std::int64_t shortest() const;  // by the table that retains the least
  double mean_length() const;     // over lanes
  double mean_stored() const;     // of tokens that have pages, over lanes

  // Bytes that append takes, and that a plan applied afterwards may take (TableMemory::sharing_reserve).
  struct Room {
    std::uint64_t append = 0;
    std::uint64_t reserve = 0;
  };
  Room plan_append(int tokens, int of_chunk) const;
  Room plan_append(int tokens) const { return plan_append(tokens, tokens); }
  // The states of the layers without lanes.
  LayerStates& states() { return states_; }
  const LayerStates& states() const { return states_; }
  std::uint64_t table_bytes() const;     // charged for the arrays of all tables
  std::uint64_t page_bytes() const;      // charged for pages, shared ones too
  std::uint64_t own_page_bytes() const;  // charged for pages that only this sequence refers to

  // Fills an empty sequence with the first tokens of a text, whose keys and values these pages already hold
  // ([column][lane], lanes of all layers and heads). Succeeds whole; after an error the sequence can only be destroyed.
  // REQUIRES: as PageTable::adopt; no layer has a state. Errors: kResourceExhausted.
  Status adopt(std::span<const PageId> pages);
  // Counts the references to pages as a cache's from now on (PagePool::mark_cached). Called once.
  void mark_cached() {
    for (PageTable& table : tables_) table.mark_cached();
  }
  // The least TableTokens::whole_columns of all tables.
  std::int64_t whole_columns() const;
  // Adds the pages of all lanes of one of these columns to `pages`.
  void add_pages_of_whole(std::int64_t column, std::vector<PageId>& pages) const;

  // Makes room for `tokens` tokens in every table, if the budget also has room for what a plan applied afterwards may
  // take. Succeeds whole or leaves no trace. Errors: kResourceExhausted.
  Status append(int tokens) { return append(tokens, tokens); }
  // As above, for a part of a chunk of `of_chunk` tokens.
  Status append(int tokens, int of_chunk);
  // As above, but asks for no reserve for copies of shared pages: no plan may be applied to the sequence.
  Status append_only(int tokens, int of_chunk);
  // The least PageTable::room_to_take_back of all tables; 0 where layers have states, which cannot go back.
  int room_to_take_back(int tokens) const;
  // Returns whether take_back may give back columns that the tokens began (PageTable::may_take_back_columns).
  bool may_take_back_columns() const {
    return !states_.exist() &&
           std::ranges::all_of(tables_, [](const PageTable& table) { return table.may_take_back_columns(); });
  }
  // Returns how many tokens every table can add to its newest column.
  int room() const;
  // Returns whether every table puts the next token into a column that holds tokens already.
  bool shares_column() const {
    return std::ranges::all_of(tables_, [](const PageTable& table) { return table.shares_column(); });
  }
  // Takes back the newest tokens, which may have been appended one by one. REQUIRES: as PageTable::take_back.
  void take_back(int tokens) {
    for (PageTable& table : tables_) table.take_back(tokens);
  }

 private:
  friend class KvCache;
  Status append(int tokens, int of_chunk, std::uint64_t needed);
  KvSequence(PolicyScope scope, const KvCodec& codec, int governed, std::vector<LayerLanes> layers, LayerStates states)
      : scope_(scope), codec_(codec), governed_(governed), layers_(std::move(layers)), states_(std::move(states)) {}
  std::span<const PageTable> governed() const { return std::span(tables_).first(static_cast<std::size_t>(governed_)); }
  PolicyScope scope_;
  KvCodec codec_;
  int governed_;
  std::vector<LayerLanes> layers_;
  std::vector<PageTable> tables_;
  LayerStates states_;
};

// Returns the share of slots written whose token was dropped and that are not reused yet, over the governed tables.
double dead_share(const KvSequence& sequence);
// Returns how often tokens were encoded, over lanes (TableColumns::encodings).
TableColumns::Encodings encodings(const KvSequence& sequence);

// How a sequence is to be held.
struct SequenceLayout {
  PolicyScope scope = PolicyScope::kSequence;
  PageTable::Layout table;
  std::optional<KvCodec> codec;  // one that the cache allows; nullopt: that of the cache's shape
};

class KvCache {
 public:
  // `budget_bytes` bounds pages and tables together. Errors: kResourceExhausted.
  // `store` holds the bytes of pages and must outlive the cache; null: pages are counted, but nothing can be read.
  static Result<std::unique_ptr<KvCache>> create(const KvCacheShape& shape, std::uint64_t budget_bytes,
                                                 PageStore* store = nullptr);
  // As above, within the budget of another cache, which must outlive this one.
  static Result<std::unique_ptr<KvCache>> create(const KvCacheShape& shape, MemoryBudget* budget, PageStore* store);

  // Allows sequences of this codec beside that of shape(), with either rotation, from the same budget. Does nothing if
  // it is already allowed. Errors: kResourceExhausted if the budget cannot hold one page of each lane; kUnsupported for
  // too many codecs.
  Status allow(const KvCodec& codec);
  bool allows(const KvCodec& codec) const { return find(codec) != allowed_.end(); }
  // All codecs that sequences may have; the first is that of shape().
  std::vector<KvCodec> codecs() const;

  // The classes of a codec's pages. REQUIRES: allows(codec).
  PageClasses classes(const KvCodec& codec) const;

  // REQUIRES: allows(layout.codec).
  KvSequence new_sequence(const SequenceLayout& layout = {});
  Result<KvSequence> fork(const KvSequence& sequence);

  // Bytes that one sequence with `columns` columns in every table costs: pages, their bookkeeping, the tables' arrays,
  // and the states. Where pages are encoded, counts the most open columns that a table can have. Uses the codec of
  // `shape`, not the layout's.
  static std::uint64_t cost(const KvCacheShape& shape, const SequenceLayout& layout, std::int64_t columns);

  // The part of cost that is for pages and their bookkeeping.
  static std::uint64_t page_cost(const KvCacheShape& shape, const SequenceLayout& layout, std::int64_t columns);
  // The most open columns that a table with encoded pages can have, those that a pass keeps until it ends included; 0
  // if pages are not encoded.
  static std::int64_t most_open_columns(const KvCacheShape& shape, const SequenceLayout& layout, std::int64_t columns);

  const KvCacheShape& shape() const { return shape_; }
  const MemoryBudget& budget() const { return *budget_; }
  MemoryBudget& budget() { return *budget_; }
  PagePool& pool() { return *pool_; }
  const PagePool& pool() const { return *pool_; }

  // KVASIR_CHECKs pool and tables: references = appearances in the sequences given (which must be all that live), bytes
  // charged = pages in use + tables + states + `others`.
  void check_invariants(std::span<const KvSequence* const> sequences, std::uint64_t others = 0) const;

 private:
  struct Allowed {
    KvCodec codec;
    PageClasses classes;
    std::vector<PageClasses> of_windows;  // [window groups]
    std::vector<std::uint8_t> rotations;  // [lanes], of the governed group, or empty
  };
  KvCache(const KvCacheShape& shape, std::unique_ptr<MemoryBudget> own, MemoryBudget* budget)
      : shape_(shape), own_budget_(std::move(own)), budget_(budget) {}
  static Result<std::unique_ptr<KvCache>> create(std::unique_ptr<KvCache> cache, PageStore* store);
  std::vector<Allowed>::const_iterator find(const KvCodec& codec) const {
    return std::ranges::find(allowed_, codec, &Allowed::codec);
  }
  KvCacheShape shape_;
  std::unique_ptr<MemoryBudget> own_budget_;  // null: the budget is another cache's
  MemoryBudget* budget_;
  std::unique_ptr<PagePool> pool_;
  std::vector<Allowed> allowed_;  // the first is the codec of shape_
};

}  // namespace kvasir
