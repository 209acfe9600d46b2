#include "sequence/sequence.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "kv/describe_table.h"

namespace kvasir {

int next_chunk_rows(std::int64_t done, std::int64_t prompt, std::int64_t total, int chunk) {
  if (done >= prompt) return 1;
  const std::int64_t to_grid = chunk - done % chunk;
  return static_cast<int>(std::min({to_grid, prompt - done, total - done}));
}

int next_chunk_rows(const RetentionPolicy& policy, std::int64_t done, std::int64_t prompt, std::int64_t total,
                    int chunk) {
  const int rows = next_chunk_rows(done, prompt, total, chunk);
  return policy.traits().last_alone() && rows > 1 && done + rows == prompt ? rows - 1 : rows;
}

PolicyModel policy_model(const LoadedModel& model) {
  return {&model.fingerprint, model.config.governed_layers(), model.config.governed().kv_heads,
          model.config.governed().window};
}

SequenceLayout sequence_layout(const RetentionPolicy& policy, std::optional<KvCodec> codec) {
  const PolicyTraits& traits = policy.traits();
  SequenceLayout layout;
  layout.codec = codec;
  layout.scope = traits.scope;
  layout.table.lists = traits.compacts;
  layout.table.original_positions = traits.compacts && traits.positions != PositionMode::kCompact;
  layout.table.run_capacities = traits.run_capacities;
  layout.table.sinks = traits.sinks;
  return layout;
}

int prompt_chunk(const RetentionPolicy& policy, int chunk) {
  if (chunk > 0) return chunk;
  return policy.traits().chunk > 0 ? policy.traits().chunk : kDefaultChunk;
}

// Between the backend and the policy, and whoever else wants to know.
class Sequence::Listener final : public AttentionListener {
 public:
  explicit Listener(Sequence* sequence) : sequence_(*sequence), masses_(sequence->policy_->as<ObservesMasses>()) {}

  std::span<const MassReduction> reductions() const override {
    if (!wanted_) return {};
    return masses_->reductions();
  }
  bool wants_row(int row) const override {
    return masses_ != nullptr && masses_->wants_row(sequence_.chunk_, sequence_.done_ + row);
  }
  bool wants_weights() const override { return tap != nullptr; }
  bool wants_queries() const override { return wants_queries_ || (tap != nullptr && tap->wants_queries()); }

  void hear_queries(const ObservedQueries& queries) override {
    if (tap != nullptr && tap->wants_queries()) tap->observe_queries(queries);
    const int head = queries.layer * sequence_.shape_.query_heads + queries.head;
    for (int row = 0; row < queries.rows; ++row)
      if (sequence_.inputs_.wants_queries(sequence_.chunk_, sequence_.done_ + queries.first_row + row))
        sequence_.inputs_.add(head, queries.of(row));
  }
  void hear_masses(const ObservedMasses& masses) override {
    const auto start = std::chrono::steady_clock::now();
    const int table = masses.layer * sequence_.layout_.per_layer + masses.table;
    masses_->observe(sequence_.chunk_, table, sequence_.done_ + masses.row, masses.masses);
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  void hear_weights(const ObservedAttention& weights) override { tap->observe(weights); }

  // Whether some row of the next pass matters to anybody.
  bool begin_pass(int rows) {
    wanted_ = false;
    for (int row = 0; row < rows && masses_ != nullptr; ++row) wanted_ = wanted_ || wants_row(row);
    wants_queries_ = sequence_.inputs_.wants_queries(sequence_.chunk_, sequence_.done_, rows);
    return wanted_ || wants_queries_ || tap != nullptr;
  }

  AttentionObserver* tap = nullptr;
  double seconds = 0;

 private:
  Sequence& sequence_;
  ObservesMasses* masses_;  // of its policy; null: it does not look at attention
  bool wanted_ = false;
  bool wants_queries_ = false;
};

Sequence::Sequence(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache,
                   std::unique_ptr<RetentionPolicy> policy, std::optional<KvCodec> codec)
    : model_(std::move(model)),
      cache_(std::move(cache)),
      policy_(std::move(policy)),
      inputs_(policy_.get()),
      biases_(*policy_),
      ranges_(policy_->as<HidesRanges>()),
      unread_(policy_->as<LeavesUnread>()),
      layout_(table_layout(cache_->shape(), policy_->traits().scope)),
      tables_(cache_->new_sequence(sequence_layout(*policy_, codec))),
      shape_(cache_->shape().with(tables_.codec())),
      listener_(std::make_unique<Listener>(this)),
      selector_(new_selector(*policy_, shape_)),
      state_(&cache_->budget()) {
  policy_->begin(layout_);
  status_ = check_model(*policy_, policy_model(*model_));
  if (status_.ok()) status_ = policy_->check_pages(policy_model(*model_), shape_.page);
  if (!status_.ok()) return;
  Result<std::unique_ptr<SequenceDemotion>> demotion =
      SequenceDemotion::create(*policy_, cache_.get(), shape_, model_->demotion_file.get());
  if (!demotion.ok()) {
    status_ = demotion.status();
  } else {
    demotion_ = std::move(*demotion);
  }
  if (status_.ok()) status_ = add_followers();
}

Status Sequence::add_followers() {
  KVASIR_ASSIGN_OR_RETURN(followers_, FollowerHeads::create(*policy_, cache_.get(), shape_, model_->cold_tier.get()));
  return {};
}

Sequence::Sequence(const Sequence& other, KvSequence tables)
    : model_(other.model_),
      cache_(other.cache_),
      policy_(other.policy_->clone()),
      inputs_(policy_.get()),
      biases_(*policy_),
      ranges_(policy_->as<HidesRanges>()),
      unread_(policy_->as<LeavesUnread>()),
      layout_(other.layout_),
      tables_(std::move(tables)),
      shape_(other.shape_),
      listener_(std::make_unique<Listener>(this)),
      selector_(other.selector_ != nullptr ? other.selector_->clone() : nullptr),
      state_(&cache_->budget()),
      most_rows_(other.most_rows_),
      first_dropped_(other.first_dropped_),
      kept_max_(other.kept_max_),
      seen_least_(other.seen_least_) {}

Sequence::~Sequence() = default;

void Sequence::set_tap(AttentionObserver* tap) {
  listener_->tap = tap;
}

double Sequence::seconds_observing() const {
  return listener_->seconds;
}

// What the policy's state comes to at most until the chunk has ended.
std::uint64_t Sequence::most_state(const PolicyChunk& chunk) const {
  const int rows = std::max(most_rows_, chunk.rows);
  const std::uint64_t now = policy_->state_bytes();
  std::uint64_t most = policy_->most_state_bytes(layout_, chunk.end(), rows);
  // A restored policy that holds more than any text leads to: its arrays grow by the chunk, and at least by a growth
  // step, which doubling and a fresh state of this size cover.
  if (now > most) most += 2 * now;
  if (selector_ != nullptr) most += selector_->bytes_for(chunk.end());
  return most + inputs_.bytes_for(shape_, policy_->traits().scope, chunk) +
         biases_.bytes_for(shape_, tables_, chunk.rows);
}

std::uint64_t Sequence::allocated_state() const {
  return policy_->state_bytes() + (selector_ != nullptr ? selector_->bytes() : 0);
}

Status Sequence::charge_state() {
  const std::uint64_t bytes = allocated_state();
  if (bytes > state_.bytes()) static_cast<void>(cache_->budget().make_available(bytes - state_.bytes()));
  if (!state_.try_resize(bytes)) return kv_memory_full(cache_->budget(), bytes - state_.bytes());
  return {};
}

Sequence::PassPlan Sequence::plan_pass(const Input& input) const {
  PassPlan plan;
  const auto rest = static_cast<std::int64_t>(input.rest.size());
  plan.begins_chunk = !in_chunk();
  if (plan.begins_chunk) {
    const TokenIndex next = tables_.next_index();
    const TokenIndex end = next + rest;
    const bool prompt = input.source == Source::kPrompt;
    const int want = next_chunk_rows(*policy_, next, prompt ? end : 0, end, prompt_chunk(*policy_, input.chunk));
    plan.chunk = {next, ranges_ != nullptr ? ranges_->chunk_rows(want) : want, prompt, 0};
    if (prompt) plan.chunk.prompt_left = end - plan.chunk.end();
  } else {
    plan.chunk = chunk_;
    plan.first = done_;
    KVASIR_CHECK(rest >= chunk_.rows - done_);
  }
  plan.rows = std::min(plan.chunk.rows - plan.first, std::max(input.most_rows, 1));
  const bool last = plan.rows == rest;
  if (input.logits == Logits::kAll) plan.logits = plan.rows;
  if (input.logits == Logits::kLast && last) plan.logits = 1;
  const KvSequence::Room room = tables_.plan_append(plan.rows);
  plan.state = plan.begins_chunk ? most_state(plan.chunk) : state_.bytes();
  plan.bytes = room.append + (plan.state > state_.bytes() ? plan.state - state_.bytes() : 0);
  plan.reserve = room.reserve;
  if (demotion_ != nullptr) plan.reserve += demotion_->may_take(tables_, plan.rows);
  if (followers_ != nullptr) {
    const FollowerHeads::Room of_followers = followers_->plan(plan.chunk);
    plan.bytes += of_followers.bytes;
    plan.reserve += of_followers.reserve;
  }
  // Keys that the chunk's end will rotate must be the sequence's own.
  if (plan.begins_chunk && rotates())
    if (const IndexRange dropped = ranges_->will_drop(plan.chunk); !dropped.empty())
      plan.reserve += tables_.only_table().memory().unshare_bytes({dropped.end, plan.chunk.end()});
  return plan;
}

Status Sequence::make_room(const PassPlan& plan) {
  if (MemoryBudget& budget = cache_->budget(); !budget.make_available(plan.bytes + plan.reserve))
    return kv_memory_full(budget, plan.bytes + plan.reserve);
  Status before = std::exchange(
      status_, exhausted("a pass over this text was given up halfway, as the system refused memory; begin it again"));
  const auto refuse = [&](Status why) {
    status_ = std::move(before);
    return why;
  };
  if (plan.begins_chunk) {
    if (rotates())
      if (const IndexRange dropped = ranges_->will_drop(plan.chunk); !dropped.empty())
        if (Status status = tables_.only_table().unshare({dropped.end, plan.chunk.end()}); !status.ok())
          return refuse(std::move(status));
    prepare_tables(plan.chunk);
    most_rows_ = std::max(most_rows_, plan.chunk.rows);
  }
  const std::uint64_t state = state_.bytes();
  if (!state_.try_resize(plan.state)) return refuse(kv_memory_full(cache_->budget(), plan.state - state));
  Status status = followers_ != nullptr ? followers_->make_room(plan.chunk) : Status();
  if (status.ok()) status = tables_.append(plan.rows);
  if (!status.ok()) {
    KVASIR_CHECK(state_.try_resize(state));
    return refuse(std::move(status));
  }
  if (plan.begins_chunk) {
    chunk_ = plan.chunk;
    hidden_.assign(static_cast<std::size_t>(chunk_.rows), {});
    if (ranges_ != nullptr) ranges_->hidden(chunk_, hidden_);
    if (selector_ != nullptr) selector_->reserve(chunk_.end());
    inputs_.begin(shape_, chunk_);
  }
  kept_max_ = std::max(kept_max_, tables_.longest());
  seen_least_ = tables_.shortest();
  bytes_peak_ = bytes_peak();
  return {};
}

std::uint64_t Sequence::bytes() const {
  return tables_.page_bytes() + tables_.table_bytes() + tables_.states().bytes() + state_.bytes() +
         (demotion_ ? demotion_->bytes() : 0) + (followers_ ? followers_->bytes() : 0);
}

std::uint64_t Sequence::own_bytes_beside_pages() const {
  return tables_.table_bytes() + tables_.states().bytes() + state_.bytes() + (demotion_ ? demotion_->own_bytes() : 0) +
         (followers_ ? followers_->bytes() : 0);
}

// Changes of frames that depend on the chunk alone.
void Sequence::prepare_tables(const PolicyChunk& chunk) {
  if (!policy_->traits().compacts) return;
  const bool leaves_context = chunk.end() > model_->config.context;
  for (int t = 0; t < tables_.governed_tables(); ++t) {
    PageTable& table = tables_.table(t);
    if (policy_->traits().positions == PositionMode::kAuto && leaves_context) table.make_positions_compact();
    const int most = table.pages().format().encoded() ? kMostEncodedChunkFrames : kMostChunkFrames;
    if (chunk.rows > kFewRows && table.layout().runs() == 1 && std::ssize(table.frames()) > most) table.compact();
  }
}

void Sequence::describe(const PassPlan& plan, std::span<const TokenId> tokens, Batch* batch,
                        std::size_t* tables_in_use) {
  BatchSequence sequence;
  sequence.first_row = batch->rows();
  sequence.rows = plan.rows;
  sequence.first_table = *tables_in_use;
  sequence.tables = tables_.tables();
  sequence.layers = tables_.layers();
  sequence.states = tables_.states().memory().data();
  sequence.logits = plan.logits;
  sequence.listener = listener_->begin_pass(plan.rows) ? listener_.get() : nullptr;
  if (selector_ != nullptr && selector_->begin_pass(chunk_, plan.first, plan.rows)) sequence.selector = selector_.get();
  const bool recalls = !chunk_.prompt || (chunk_.ends_prompt() && plan.ends_chunk());
  if (demotion_ != nullptr && recalls)
    sequence.offloaded = demotion_->begin_pass(chunk_.first + plan.first + plan.rows - 1);
  if (followers_ != nullptr) sequence.offloaded = followers_->begin_pass(chunk_, tables_);
  batch->tokens.insert(batch->tokens.end(), tokens.begin(), tokens.begin() + plan.rows);
  *tables_in_use += static_cast<std::size_t>(sequence.tables);
  if (batch->tables.size() < *tables_in_use) batch->tables.resize(*tables_in_use);
  const auto hidden =
      std::span(hidden_).subspan(static_cast<std::size_t>(plan.first), static_cast<std::size_t>(plan.rows));
  for (int t = 0; t < tables_.governed_tables(); ++t) {
    reads_.clear();
    const bool selects = unread_ != nullptr && unread_->reads(chunk_, t, reads_);
    describe_table(tables_.table(t), hidden, model_->config.governed().window,
                   &batch->tables[sequence.first_table + static_cast<std::size_t>(t)], selects ? &reads_ : nullptr);
    biases_.describe(tables_, t, chunk_.first, &batch->tables[sequence.first_table + static_cast<std::size_t>(t)]);
    if (followers_ != nullptr)
      followers_->describe(t, &batch->tables[sequence.first_table + static_cast<std::size_t>(t)]);
  }
  // The policy hides nothing from layers that keep a window of their own.
  nothing_hidden_.assign(hidden.size(), {});
  for (std::size_t w = 0; w < shape_.windows.size(); ++w) {
    const std::size_t t = static_cast<std::size_t>(tables_.governed_tables()) + w;
    describe_table(tables_.table(static_cast<int>(t)), nothing_hidden_, shape_.windows[w].window,
                   &batch->tables[sequence.first_table + t]);
  }
  batch->sequences.push_back(sequence);
}

void Sequence::finish_pass(const PassPlan& plan) {
  tables_.end_pass();
  biases_.clear();
  done_ += plan.rows;
  if (done_ == chunk_.rows) {
    inputs_.finish(shape_, chunk_, tables_, *cache_->pool().store(), kv_tap_);
    prune();
    offload();
    done_ = 0;
    const std::uint64_t state = allocated_state();
    KVASIR_CHECK(state <= state_.bytes() && state_.try_resize(state));
  }
  status_ = recall_status();
}

void Sequence::prune() {
  const MemoryBudget& budget = cache_->budget();
  const std::uint64_t before = demotion_ != nullptr ? bytes() : 0;
  const std::uint64_t used = budget.used();
  const auto decide = [&](const auto& ask) {
    for (int t = 0; t < tables_.governed_tables(); ++t) {
      plan_.clear();
      ask(t);
      if (plan_.empty()) continue;
      if (!plan_.drop.empty() && plan_.drop.front().begin < first_dropped_.value_or(plan_.drop.front().end))
        first_dropped_ = plan_.drop.front().begin;
      if (demotion_ != nullptr) {
        demotion_->take(t, tables_.table(t), plan_.drop);
        // What is dropped is there twice for a moment.
        bytes_peak_ = std::max(bytes_peak_, before + budget.used() - used);
      }
      // One growing hole always fits a table of ranges.
      KVASIR_CHECK(tables_.table(t).apply(plan_).ok());
    }
  };
  decide([&](int table) { policy_->end_chunk(chunk_, table, plan_); });
  decide([&](int table) { policy_->finish_chunk(chunk_, table, plan_); });
  // An observer is shown the weights of all retained tokens, zeros too.
  if (listener_->tap == nullptr) {
    tables_.give_back();
  } else {
    tables_.give_back_windows();
  }
}

// An observer is shown the weights of all retained tokens.
void Sequence::offload() {
  if (followers_ == nullptr || (listener_->tap != nullptr && followers_->empty())) return;
  followers_->keep(chunk_, tables_);
  // What leaves the tables, and is hot from now on, is there twice for a moment.
  bytes_peak_ = bytes_peak();
  followers_->give_back(&tables_);
}

Status Sequence::own_pages() {
  KVASIR_RETURN_IF_ERROR(status_);
  if (!policy_->traits().compacts) return {};
  for (int t = 0; t < tables_.governed_tables(); ++t)
    KVASIR_RETURN_IF_ERROR(tables_.table(t).unshare({0, tables_.next_index()}));
  return {};
}

Result<std::unique_ptr<Sequence>> Sequence::fork() const {
  KVASIR_RETURN_IF_ERROR(status_);
  KVASIR_CHECK(!in_chunk());
  static_cast<void>(cache_->budget().make_available(tables_.table_bytes() + tables_.states().bytes() + state_.bytes()));
  KVASIR_ASSIGN_OR_RETURN(KvSequence tables, cache_->fork(tables_));
  std::unique_ptr<Sequence> copy(new Sequence(*this, std::move(tables)));
  KVASIR_RETURN_IF_ERROR(copy->charge_state());
  if (demotion_ != nullptr) {
    KVASIR_ASSIGN_OR_RETURN(copy->demotion_, demotion_->fork());
  }
  if (followers_ != nullptr) {
    KVASIR_ASSIGN_OR_RETURN(copy->followers_, followers_->fork(*copy->policy_));
  }
  return copy;
}

void Sequence::set_counters(const Counters& counters) {
  kept_max_ = counters.kept_max;
  seen_least_ = counters.seen_least;
  first_dropped_.reset();
  if (counters.first_dropped >= 0) first_dropped_ = counters.first_dropped;
}

}  // namespace kvasir
