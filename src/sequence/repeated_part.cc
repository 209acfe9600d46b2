// How a sequence has the model repeat parts of its text, for a policy that decides by what they attend to
// (RepeatsText).
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "sequence/sequence.h"

namespace kvasir {

// The wording of KVzip's published code. A vocabulary that cannot write it leaves it out.
Sequence::Instruction Sequence::instruction_to_repeat() const {
  const auto encoded = [&](std::string_view text) {
    Result<std::vector<TokenId>> tokens = model_->tokenizer->encode(text, {.add_special = false, .continues = true});
    return tokens.ok() ? std::move(*tokens) : std::vector<TokenId>();
  };
  return {encoded("\n\nRepeat the previous context exactly."),
          encoded("\n\nRepeat the part of the previous context exactly, starting with"), encoded("\n")};
}

std::vector<TokenId> Sequence::tokens_of_part() const {
  const RepeatsText::Part part = repeats_->next_part();
  std::vector<TokenId> tokens = part.lead.empty() ? instruction_.first : instruction_.later;
  tokens.insert(tokens.end(), part.lead.begin(), part.lead.end());
  tokens.insert(tokens.end(), instruction_.end.begin(), instruction_.end.end());
  tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
  return tokens;
}

std::int64_t Sequence::rows_to_repeat() const {
  if (repeats_ == nullptr || done_ > 0) return 0;
  if (part_ != nullptr) return std::ssize(part_tokens_) - part_done_;
  const RepeatsText::Part part = repeats_->next_part();
  if (part.tokens.empty()) return 0;
  return std::ssize(part.lead.empty() ? instruction_.first : instruction_.later) + std::ssize(part.lead) +
         std::ssize(instruction_.end) + std::ssize(part.tokens);
}

Sequence::Input Sequence::part_input(int grid, int most_rows) const {
  Input input;
  input.rest = std::span(part_tokens_).subspan(static_cast<std::size_t>(part_done_));
  input.chunk = grid;
  input.most_rows = most_rows;
  input.logits = Logits::kNone;
  return input;
}

Sequence::PassPlan Sequence::plan_part(const Input& input) const {
  const int grid = prompt_chunk(*policy_, input.chunk);
  PassPlan plan;
  if (part_ != nullptr) {
    plan = part_->plan_pass(part_input(grid, input.most_rows));
    plan.reserve = evict_reserve_;
  } else {
    const TokenIndex next = tables_.next_index(), end = next + rows_to_repeat();
    plan.chunk = {next, next_chunk_rows(next, end, end, grid), true, 0};
    plan.chunk.prompt_left = end - plan.chunk.end();
    plan.rows = std::min(plan.chunk.rows, std::max(input.most_rows, 1));
    // The fork copies the tables, the states, the policy, and the pages that are partly filled.
    const KvSequence::Room room = tables_.plan_append(plan.rows, plan.chunk.rows);
    const std::int64_t copied = shape_.page.encoded() ? 2 : 1;
    plan.bytes = tables_.table_bytes() + tables_.states().bytes() + std::max(state_.bytes(), most_state(plan.chunk)) +
                 room.append + KvCache::page_cost(shape_, sequence_layout(*policy_, tables_.codec()), copied);
    plan.reserve = tables_.plan_append(0).reserve;
  }
  plan.grid = grid;
  return plan;
}

// Forks the sequence to repeat the next part of the text.
Status Sequence::begin_part() {
  for (int t = 0; t < tables_.governed_tables(); ++t) limit_frames(tables_.table(t));
  own_page_bytes_ = tables_.own_page_bytes();
  evict_reserve_ = tables_.plan_append(0).reserve;
  std::vector<TokenId> tokens = tokens_of_part();
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> part, fork());
  part->is_part_ = true;
  part->repeats_->observe_part();
  part_ = std::move(part);
  part_tokens_ = std::move(tokens);
  return {};
}

Status Sequence::make_room_for_part(const PassPlan& plan) {
  if (MemoryBudget& budget = cache_->budget(); !budget.make_available(plan.bytes + plan.reserve))
    return kv_memory_full(budget, plan.bytes + plan.reserve);
  const bool begins = part_ == nullptr;
  if (begins) KVASIR_RETURN_IF_ERROR(begin_part());
  part_plan_ = part_->plan_pass(part_input(plan.grid, plan.rows));
  if (Status status = part_->make_room(part_plan_); !status.ok()) {
    if (begins) give_up_part();
    return status;
  }
  status_ = part_->status();
  bytes_peak_ = bytes_peak();
  return {};
}

void Sequence::give_up_part() {
  part_ = nullptr;
  std::vector<TokenId>().swap(part_tokens_);
  part_done_ = 0;
}

// The status becomes that of the part last: if memory is refused on the way, the sequence cannot go on.
void Sequence::finish_part_pass() {
  part_->finish_pass(part_plan_, part_plan_.rows);
  part_done_ += part_plan_.rows;
  repeated_rows_ += part_plan_.rows;
  Status status = part_->status();
  if (status.ok() && part_done_ == std::ssize(part_tokens_)) {
    repeats_->end_part(*part_->policy_);
    give_up_part();
    if (repeats_->next_part().tokens.empty()) {
      decide([&](int table) { repeats_->evict(table, plan_); });
      const std::uint64_t state = policy_->state_bytes() + reads_.bytes();
      KVASIR_CHECK(state <= state_.bytes() && state_.try_resize(state));
    }
  }
  status_ = std::move(status);
}

}  // namespace kvasir
