#include "retention/policy.h"

#include <algorithm>

#include "base/check.h"
#include "base/status.h"
#include "retention/registry.h"

namespace kvasir {

Status RetentionPolicy::demote(const Demotion& demotion) {
  const auto refuse = [&](std::string_view why) {
    return invalid_argument("what policy '{}' drops cannot be demoted: {}", traits_.spec, why)
        .about({"demote", "policy"});
  };
  if (as<LeavesUnread>() != nullptr || (!traits_.compacts && !bound()))
    return refuse("it drops nothing; choose one that evicts, such as h2o:budget=1024,pos=original");
  if (!traits_.run_capacities.empty() || (traits_.compacts && traits_.positions != PositionMode::kOriginal))
    return refuse(
        "it moves tokens to other positions, and dropped keys keep theirs; choose one with pos=original, such as "
        "h2o:budget=1024,pos=original");
  if (as<RepeatsText>() != nullptr)
    return refuse("it has the model repeat the text, which demoted tokens are not part of");
  if (traits_.realign == Realign::kRotate) return refuse("realign=rotate rotates its keys again; leave it out");
  traits_.demotion = demotion;
  traits_.spec += fmt::format("@demote={}", demotion_text(demotion));
  return {};
}

Status RetentionPolicy::check_pages(const PolicyModel& model, const PageFormat& page) const {
  // Measured on SmolLM2-135M-Instruct (docs/policies/streaming.md): 16 roundings cost nothing in q4 and little in q3;
  // 252 ruin the text.
  constexpr std::int64_t kMostRoundings = 32;
  if (traits_.rotations > kMostRoundings && is_encoded(page.key) && page.key != KvType::kQ8)
    return invalid_argument(
               "policy '{}' rotates each key {} times while it is held, and keys in {} are rounded anew each time, "
               "which ruins the text; leave realign=rotate out, prune more rarely (every=N), or store keys in q8 or "
               "more",
               traits_.spec, traits_.rotations, kv_type_name(page.key))
        .about({"policy", "kv_type"});
  if (!traits_.demotion) return {};
  if (model.sliding_window > 0)
    return invalid_argument(
               "demote does not go with a model that has a sliding window of {} tokens: what lies behind it is hidden "
               "anyway; leave demote away",
               model.sliding_window)
        .about({"demote"});
  PageFormat demoted = page;
  if (traits_.demotion->type) demoted.key = demoted.value = *traits_.demotion->type;
  if (demoted.open() == page.open() || (page.key == KvType::kI16 && demoted.open().key == KvType::kF16)) return {};
  return invalid_argument(
             "demote '{}' needs a cache of f16, i16 or codecs, not {}; choose another kv_type, or demote to a file "
             "alone",
             demotion_text(*traits_.demotion), codec_name(page))
      .about({"demote", "kv_type"});
}

ContextUse RetentionPolicy::context_use() const {
  if (traits_.demotion) return ContextUse::kText;
  if (traits_.positions == PositionMode::kOriginal) return ContextUse::kText;
  if (bound()) return ContextUse::kNone;
  return traits_.compacts ? ContextUse::kHeld : ContextUse::kText;
}

void RetentionPolicy::save(ByteWriter& out) const {
  out.put_string(traits_.spec);
  save_state(out);
}

namespace {

std::string canonical_spec_of_file(const std::string& spec) {
  const Result<PolicySpec> parsed = PolicySpec::parse(spec);
  if (!parsed.ok()) return {};
  const auto made = make_policy(spec_of_file(*parsed));
  return made.ok() ? (*made)->traits().spec : std::string();
}

}  // namespace

Status RetentionPolicy::restore(ByteReader& in) {
  std::string spec;
  if (!in.get_string(spec)) return data_loss("the saved state of policy '{}' is cut off", traits_.spec);
  if (spec != traits_.spec && canonical_spec_of_file(spec) != traits_.spec)
    return data_loss("the saved state is not one of policy '{}'", traits_.spec);
  if (!restore_state(in)) return data_loss("the saved state of policy '{}' is damaged", traits_.spec);
  return {};
}

const std::vector<MassReduction>& reductions_of(const RetentionPolicy& policy) {
  static const std::vector<MassReduction> kNone;
  const ObservesMasses* masses = policy.as<ObservesMasses>();
  return masses != nullptr ? masses->reductions() : kNone;
}

bool wants_row(const RetentionPolicy& policy, const PolicyChunk& chunk, int row) {
  const ObservesMasses* masses = policy.as<ObservesMasses>();
  return masses != nullptr && masses->wants_row(chunk, row);
}

int chunk_rows(const RetentionPolicy& policy, int want) {
  const HidesRanges* ranges = policy.as<HidesRanges>();
  return ranges != nullptr ? ranges->chunk_rows(want) : want;
}

void find_hidden(const RetentionPolicy& policy, const PolicyChunk& chunk, std::span<IndexRange> rows) {
  KVASIR_CHECK(std::ssize(rows) == chunk.rows);
  if (const HidesRanges* ranges = policy.as<HidesRanges>()) return ranges->hidden(chunk, rows);
  std::ranges::fill(rows, IndexRange{});
}

bool all_read(const RetentionPolicy& policy) {
  const LeavesUnread* unread = policy.as<LeavesUnread>();
  return unread == nullptr || unread->all_read();
}

std::int64_t shared_prefix(const RetentionPolicy& policy, std::int64_t n) {
  const KnowsPromptEnd* knows = policy.as<KnowsPromptEnd>();
  return knows != nullptr ? knows->shared_prefix(n) : n;
}

void move_prompt_end(RetentionPolicy& policy, TokenIndex end) {
  if (KnowsPromptEnd* knows = policy.as<KnowsPromptEnd>()) knows->move_prompt_end(end);
}

Status check_model(const RetentionPolicy& policy, const PolicyModel& model) {
  if (const ReadsHeldKv* held = policy.as<ReadsHeldKv>(); held != nullptr && held->projects_values() && model.latent)
    return unsupported(
        "policy '{}' weighs values by the output projection, which latent attention does not apply to cached values; "
        "omit value=wo or norm=wo",
        policy.traits().spec);
  const DependsOnModel* depends = policy.as<DependsOnModel>();
  return depends != nullptr ? depends->check_model(model) : Status();
}

}  // namespace kvasir
