#include "sequence/sequence.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/status.h"

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
  const AttentionSpec& governed = model.config.governed();
  return {&model.fingerprint, model.config.governed_layers(), governed.kv_heads, governed.window, governed.heads,
          governed.head_dim,  governed.latent.has_value()};
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

namespace {

ProjectedNorms norms_of(const LoadedModel& model) {
  return [&](int layer, int kv_head, std::span<const float> values, std::span<double> norms) {
    model.transformer->projected_norms(layer, kv_head, values, norms);
  };
}

// Returns the tokens whose keys the chunk's end will rotate. These pages must be the sequence's own by then.
IndexRange will_rotate(const RetentionPolicy& policy, const PolicyChunk& chunk) {
  const HidesRanges* hides = policy.as<HidesRanges>();
  if (policy.traits().realign != Realign::kRotate || hides == nullptr) return {};
  const IndexRange dropped = hides->will_drop(chunk);
  return dropped.empty() ? IndexRange() : IndexRange{dropped.end, chunk.end()};
}

}  // namespace

Sequence::Sequence(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache,
                   std::unique_ptr<RetentionPolicy> policy, std::optional<KvCodec> codec,
                   std::optional<std::vector<AppliedAdapter>> adapters)
    : model_(std::move(model)),
      cache_(std::move(cache)),
      adapters_(adapters ? std::move(*adapters) : default_adapters(model_->adapters)),
      policy_(std::move(policy)),
      repeats_(policy_->as<RepeatsText>()),
      tables_(cache_->new_sequence(sequence_layout(*policy_, codec))),
      shape_(cache_->shape().with(tables_.codec())),
      listener_(policy_.get(), shape_, model_->threads.get(), norms_of(*model_)),
      reads_(*policy_, shape_, new_selector(*policy_, shape_)),
      state_(&cache_->budget()) {
  if (repeats_ != nullptr) instruction_ = instruction_to_repeat();
  status_ = check_model(*policy_, policy_model(*model_));
  if (!status_.ok()) return;
  policy_->begin(table_layout(shape_, policy_->traits().scope));
  status_ = policy_->check_pages(policy_model(*model_), shape_.page);
  if (!status_.ok()) return;
  Result<OffloadedTokens> offloaded =
      OffloadedTokens::create(*policy_, cache_.get(), shape_, model_->demotion_file.get(), model_->cold_tier.get());
  status_ = offloaded.status();
  if (status_.ok()) offloaded_ = std::move(*offloaded);
}

Sequence::Sequence(const Sequence& other, KvSequence tables)
    : model_(other.model_),
      cache_(other.cache_),
      adapters_(other.adapters_),
      policy_(other.policy_->clone()),
      repeats_(policy_->as<RepeatsText>()),
      instruction_(other.instruction_),
      tables_(std::move(tables)),
      shape_(other.shape_),
      listener_(policy_.get(), shape_, model_->threads.get(), norms_of(*model_)),
      reads_(*policy_, shape_, other.reads_.selector() != nullptr ? other.reads_.selector()->clone() : nullptr),
      state_(&cache_->budget()),
      most_rows_(other.most_rows_) {}

// Returns the most that the policy's state comes to until the chunk has ended.
std::uint64_t Sequence::most_state(const PolicyChunk& chunk) const {
  const TableLayout layout = table_layout(shape_, policy_->traits().scope);
  const std::uint64_t now = policy_->state_bytes();
  std::uint64_t most = policy_->most_state_bytes(layout, chunk.end(), std::max(most_rows_, chunk.rows));
  // A restored policy that holds more than any text leads to: its arrays grow by the chunk, and at least by a growth
  // step, which doubling and a fresh state of this size cover.
  if (now > most) most += 2 * now;
  return most + listener_.bytes_for(chunk) + reads_.bytes_for(tables_, chunk);
}

// Makes the changes of frames that depend on the chunk alone.
void Sequence::prepare_tables(const PolicyChunk& chunk) {
  if (!policy_->traits().compacts) return;
  const bool leaves_context = chunk.end() > context();
  for (int t = 0; t < tables_.governed_tables(); ++t) {
    PageTable& table = tables_.table(t);
    if (policy_->traits().positions == PositionMode::kAuto && leaves_context) table.make_positions_compact();
    if (chunk.rows > kFewRows) limit_frames(table);
  }
}

void Sequence::limit_frames(PageTable& table) {
  const int most = table.pages().format().encoded() ? kMostEncodedChunkFrames : kMostChunkFrames;
  if (table.layout().runs() == 1 && std::ssize(table.frames()) > most) table.compact();
}

Status Sequence::resume(const Counters& counters) {
  counters_ = counters;
  if (repeats_ != nullptr)
    for (const TokenId token : repeats_->text())
      if (token < 0 || token >= model_->config.vocabulary)
        return data_loss("the saved state of policy '{}' has token {} of {}: it is damaged", policy_->traits().spec,
                         token, model_->config.vocabulary);
  const std::uint64_t bytes = policy_->state_bytes() + reads_.bytes();
  if (bytes > state_.bytes()) static_cast<void>(cache_->budget().make_available(bytes - state_.bytes()));
  if (!state_.try_resize(bytes)) return kv_memory_full(cache_->budget(), bytes - state_.bytes());
  return {};
}

// The rows of such passes are rows of no chunk: the policy is not told of them.
Sequence::PassPlan Sequence::plan_drafting(const DraftView& view) const {
  PassPlan plan;
  const TokenIndex next = tables_.next_index();
  plan.chunk = {next, 1, false, 0};
  plan.rows = plan.logits = 1;
  plan.unseen = {std::min(view.sinks, next), std::max(next + 1 - view.recent, std::min(view.sinks, next))};
  const KvSequence::Room room = tables_.plan_append(1);
  plan.state = state_.bytes();
  plan.bytes = room.append;
  plan.reserve = room.reserve;
  return plan;
}

Sequence::PassPlan Sequence::plan_pass(const Input& input) const {
  if (input.view) return plan_drafting(*input.view);
  KVASIR_CHECK(drafting_ == 0);
  if (rows_to_repeat() > 0) return plan_part(input);
  PassPlan plan;
  const auto rest = static_cast<std::int64_t>(input.rest.size());
  plan.begins_chunk = !in_chunk();
  if (plan.begins_chunk) {
    const TokenIndex next = tables_.next_index();
    const TokenIndex end = next + rest;
    const bool prompt = input.source == Source::kPrompt;
    const int want = next_chunk_rows(*policy_, next, prompt ? end : 0, end, prompt_chunk(*policy_, input.chunk));
    plan.chunk = {next, chunk_rows(*policy_, want), prompt, 0};
    if (input.drafts > 0) {
      KVASIR_CHECK(!prompt && input.drafts < rest);
      plan.chunk.rows = 1 + most_drafts(input.drafts);
    }
    if (prompt) plan.chunk.prompt_left = end - plan.chunk.end();
  } else {
    plan.chunk = chunk_;
    plan.first = done_;
    KVASIR_CHECK(rest >= chunk_.rows - done_);
  }
  plan.rows = std::min(plan.chunk.rows - plan.first, std::max(input.most_rows, 1));
  const bool last = plan.rows == rest;
  if (input.hidden) {
    plan.hidden = plan.rows;
  } else if (input.logits == Logits::kAll) {
    plan.logits = plan.rows;
  } else if (input.logits == Logits::kLast && last) {
    plan.logits = 1;
  }
  const KvSequence::Room room = tables_.plan_append(plan.rows, plan.chunk.rows);
  const OffloadedTokens::Room offloaded = offloaded_.plan(tables_, plan.chunk, plan.rows);
  plan.state = plan.begins_chunk ? most_state(plan.chunk) : state_.bytes();
  plan.bytes = room.append + offloaded.bytes + (plan.state > state_.bytes() ? plan.state - state_.bytes() : 0);
  plan.reserve = is_part_ ? 0 : room.reserve + offloaded.reserve;
  if (plan.begins_chunk)
    if (const IndexRange rotated = will_rotate(*policy_, plan.chunk); !rotated.empty())
      plan.reserve += tables_.only_table().memory().unshare_bytes(rotated);
  return plan;
}

Status Sequence::make_room(const PassPlan& plan) {
  if (plan.repeats()) return make_room_for_part(plan);
  if (MemoryBudget& budget = cache_->budget(); !budget.make_available(plan.bytes + plan.reserve))
    return kv_memory_full(budget, plan.bytes + plan.reserve);
  Status before = std::exchange(
      status_, exhausted("a pass over this text was given up halfway, as the system refused memory; begin it again"));
  const auto refuse = [&](Status why) {
    status_ = std::move(before);
    return why;
  };
  if (plan.begins_chunk && !plan.is_drafting()) {
    if (const IndexRange rotated = will_rotate(*policy_, plan.chunk); !rotated.empty())
      if (Status status = tables_.only_table().unshare(rotated); !status.ok()) return refuse(std::move(status));
    // The tables of a part are as the text's were before it.
    if (!is_part_) prepare_tables(plan.chunk);
    most_rows_ = std::max(most_rows_, plan.chunk.rows);
  }
  const std::uint64_t state = state_.bytes();
  if (!state_.try_resize(plan.state)) return refuse(kv_memory_full(cache_->budget(), plan.state - state));
  FollowerHeads* const followers = offloaded_.followers();
  Status status = followers != nullptr ? followers->make_room(plan.chunk) : Status();
  if (status.ok())
    status = is_part_ ? tables_.append_only(plan.rows, plan.chunk.rows) : tables_.append(plan.rows, plan.chunk.rows);
  if (!status.ok()) {
    KVASIR_CHECK(state_.try_resize(state));
    return refuse(std::move(status));
  }
  if (plan.is_drafting()) {
    reads_.begin_drafting(plan.chunk, *plan.unseen);
    ++drafting_;
    return {};
  }
  if (plan.begins_chunk) {
    chunk_ = plan.chunk;
    reads_.begin_chunk(chunk_);
    listener_.begin_chunk(chunk_);
  }
  if (!plan.has_drafts()) count_seen(std::numeric_limits<std::int64_t>::max());
  bytes_peak_ = bytes_peak();
  return {};
}

void Sequence::count_seen(std::int64_t most) {
  counters_.kept_max = std::max(counters_.kept_max, std::min(tables_.longest(), most));
  counters_.seen_least = std::min(tables_.shortest(), most);
}

std::string_view Sequence::drafts_refused() const {
  if (!policy_->rests_while_generating()) return "the policy decides or reads with every generated token";
  if (policy_->traits().realign == Realign::kRotate) return "the policy rotates keys";
  if (policy_->as<DropsThoughts>() != nullptr) return "the policy drops thoughts";
  if (reads_.selector() != nullptr) return "the policy selects what each token reads";
  if (tables_.states().exist()) return "the model's layers have states, which cannot go back";
  if (!offloaded_.empty()) return "tokens are outside memory";
  return {};
}

std::string_view Sequence::drafting_refused() const {
  if (const std::string_view refused = drafts_refused(); !refused.empty()) return refused;
  if (policy_->traits().compacts) return "the policy keeps single tokens, and the model drafts from ranges of them";
  return {};
}

bool Sequence::may_draft(const DraftView& view, int drafts) const {
  // The drawn token is taken back too: it must not be the first of its page.
  return drafts > 0 && tables_.next_index() > view.tokens() && drafting_refused().empty() &&
         (tables_.shares_column() || drafts_may_begin_pages());
}

void Sequence::take_back_drafting(int stay) {
  KVASIR_CHECK(stay <= drafting_);
  if (drafting_ > stay) tables_.take_back(drafting_ - stay);
  drafting_ = 0;
  if (stay == 0) return;
  chunk_ = {tables_.next_index() - stay, stay, false, 0};
  count_seen(policy_->bound().value_or(std::numeric_limits<std::int64_t>::max()));
  bytes_peak_ = bytes_peak();
  prune();
}

// Under a bound, or with sliding windows, a page that begins early would be one more than was planned.
bool Sequence::drafts_may_begin_pages() const {
  return !policy_->bound() && shape_.window == 0 && shape_.windows.empty() && tables_.may_take_back_columns();
}

int Sequence::most_drafts(int wanted) const {
  if (wanted <= 0 || in_chunk() || listener_.has_tap() || !drafts_refused().empty()) return 0;
  // Where positions change as the context is left, only tokens in front of that may share a chunk.
  const std::int64_t before = context() - tables_.next_index() - 1;
  if (policy_->traits().positions == PositionMode::kAuto && before >= 0)
    wanted = static_cast<int>(std::min<std::int64_t>(wanted, before));
  wanted = std::min(wanted, chunk_rows(*policy_, std::min(wanted + 1, kFewRows)) - 1);
  if (const int room = tables_.room(); room > 0 && !drafts_may_begin_pages()) wanted = std::min(wanted, room - 1);
  return tables_.room_to_take_back(wanted);
}

std::uint64_t Sequence::bytes() const {
  return tables_.page_bytes() + tables_.table_bytes() + tables_.states().bytes() + state_.bytes() + offloaded_.bytes() +
         (part_ != nullptr ? part_->own_page_bytes() + part_->own_bytes_beside_pages() : 0);
}

std::uint64_t Sequence::own_bytes_beside_pages() const {
  return tables_.table_bytes() + tables_.states().bytes() + state_.bytes() + offloaded_.own_bytes() +
         (part_ != nullptr ? part_->own_page_bytes() + part_->own_bytes_beside_pages() : 0);
}

void Sequence::describe(const PassPlan& plan, std::span<const TokenId> tokens, Batch* batch,
                        std::size_t* tables_in_use) {
  if (plan.repeats())
    return part_->describe(part_plan_, std::span(part_tokens_).subspan(static_cast<std::size_t>(part_done_)), batch,
                           tables_in_use);
  if (repeats_ != nullptr && !plan.is_drafting())
    repeats_->take_text(tokens.first(static_cast<std::size_t>(plan.rows)));
  BatchSequence sequence;
  sequence.first_row = batch->rows();
  sequence.rows = plan.rows;
  sequence.first_table = *tables_in_use;
  sequence.tables = tables_.tables();
  sequence.layers = tables_.layers();
  sequence.adapters = adapters_;
  sequence.states = tables_.states().memory().data();
  sequence.rotation_shift = shape_.rotation_shift();
  sequence.logits = plan.logits;
  sequence.hidden = plan.hidden;
  if (!plan.is_drafting()) {
    sequence.listener = listener_.begin_pass(plan.first, plan.rows);
    sequence.offloaded = offloaded_.begin_pass(chunk_, plan.first + plan.rows, tables_);
  }
  batch->tokens.insert(batch->tokens.end(), tokens.begin(), tokens.begin() + plan.rows);
  *tables_in_use += static_cast<std::size_t>(sequence.tables);
  if (batch->tables.size() < *tables_in_use) batch->tables.resize(*tables_in_use);
  const std::span<BatchTable> tables =
      std::span(batch->tables).subspan(sequence.first_table, *tables_in_use - sequence.first_table);
  reads_.describe(tables_, model_->config.governed().window, plan.first, plan.rows, &sequence, tables);
  if (const FollowerHeads* followers = offloaded_.followers(); followers != nullptr)
    for (int t = 0; t < tables_.governed_tables(); ++t) followers->describe(t, &tables[static_cast<std::size_t>(t)]);
  batch->sequences.push_back(sequence);
}

void Sequence::finish_pass(const PassPlan& plan, int rows) {
  if (plan.repeats()) return finish_part_pass();
  if (plan.is_drafting()) {
    tables_.end_pass();
    reads_.end_pass();
    status_ = {};
    return;
  }
  KVASIR_CHECK(rows == plan.rows || (rows >= 1 && rows < plan.rows && plan.has_drafts()));
  if (rows < plan.rows) {
    tables_.take_back(plan.rows - rows);
    chunk_.rows = rows;
  }
  // A row of drafts sees what it would see alone.
  if (plan.has_drafts()) count_seen(policy_->bound().value_or(std::numeric_limits<std::int64_t>::max()));
  tables_.end_pass();
  reads_.end_pass();
  done_ += rows;
  if (done_ == chunk_.rows) {
    listener_.end_chunk(tables_, *cache_->pool().store());
    prune();
    done_ = 0;
    const std::uint64_t state = policy_->state_bytes() + reads_.bytes();
    KVASIR_CHECK(state <= state_.bytes() && state_.try_resize(state));
  }
  status_ = offloaded_.status();
}

// Executes for each governed table what `ask` writes to plan_.
void Sequence::decide(const std::function<void(int table)>& ask) {
  const MemoryBudget& budget = cache_->budget();
  SequenceDemotion* const demotion = offloaded_.demotion();
  const std::uint64_t before = demotion != nullptr ? bytes() : 0;
  const std::uint64_t used = budget.used();
  std::optional<TokenIndex>& first_dropped = counters_.first_dropped;
  for (int t = 0; t < tables_.governed_tables(); ++t) {
    plan_.clear();
    ask(t);
    if (plan_.empty()) continue;
    if (!plan_.drop.empty() && plan_.drop.front().begin < first_dropped.value_or(plan_.drop.front().end))
      first_dropped = plan_.drop.front().begin;
    if (demotion != nullptr) {
      demotion->take(t, tables_.table(t), plan_.drop);
      // For a moment the tables still have what was demoted.
      bytes_peak_ = std::max(bytes_peak_, before + budget.used() - used);
    }
    // One growing hole always fits a table of ranges.
    KVASIR_CHECK(tables_.table(t).apply(plan_).ok());
  }
}

void Sequence::prune() {
  decide([&](int table) { policy_->end_chunk(chunk_, table, plan_); });
  decide([&](int table) { policy_->finish_chunk(chunk_, table, plan_); });
  // A tap is shown the weights of all retained tokens, zeros too, so that their pages stay.
  tables_.give_back(listener_.has_tap() ? KvSequence::Groups::kWindows : KvSequence::Groups::kAll);
  FollowerHeads* const followers = offloaded_.followers();
  if (followers == nullptr || (listener_.has_tap() && followers->empty())) return;
  followers->keep(chunk_, tables_);
  // For a moment the tables still have what is offloaded.
  bytes_peak_ = bytes_peak();
  followers->give_back(&tables_);
}

void Sequence::drop_thoughts(IndexRange thoughts) {
  KVASIR_CHECK(!in_chunk() && tables_.governed_tables() == 1);
  plan_.clear();
  policy_->as<DropsThoughts>()->drop_thoughts(thoughts, plan_);
  counters_.first_dropped = thoughts.begin;
  KVASIR_CHECK(tables_.table(0).apply(plan_).ok());  // one hole always fits a table of ranges
}

Result<std::unique_ptr<Sequence>> Sequence::fork() const {
  KVASIR_RETURN_IF_ERROR(status_);
  KVASIR_CHECK(!in_chunk());
  static_cast<void>(cache_->budget().make_available(tables_.table_bytes() + tables_.states().bytes() + state_.bytes()));
  KVASIR_ASSIGN_OR_RETURN(KvSequence tables, cache_->fork(tables_));
  std::unique_ptr<Sequence> copy(new Sequence(*this, std::move(tables)));
  KVASIR_RETURN_IF_ERROR(copy->resume(counters_));
  KVASIR_ASSIGN_OR_RETURN(copy->offloaded_, offloaded_.fork(*copy->policy_));
  return copy;
}

}  // namespace kvasir
