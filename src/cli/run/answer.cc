#include "cli/run/answer.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "base/status.h"
#include "base/system_memory.h"
#include "cli/run/logprobs.h"
#include "cli/signals.h"
#include "retention/registry.h"
#include "server/api/kv_report_json.h"

namespace kvasir::cli {
namespace {

constexpr std::int64_t kMostSeen = std::numeric_limits<std::int64_t>::max();  // the most that the policy allows

Json to_json(const KvReport& kv) {
  Json json{{"policy", kv.policy},
            {"codec", kv.codec},
            {"seen", kv.seen},
            {"kept", kv.kept},
            {"kept_least", kv.kept_least},
            {"kept_most", kv.kept_most},
            {"kept_max", kv.kept_max},
            {"read", kv.read},
            {"dead_share", kv.dead_share},
            {"encodings_mean", kv.encodings_mean},
            {"encodings_max", kv.encodings_max},
            {"bytes", kv.bytes},
            {"bytes_peak", kv.bytes_peak},
            {"budget", kv.budget}};
  add_places(kv, &json);
  return json;
}

double rate(std::int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

void begin_line() {
  if (::isatty(STDERR_FILENO) != 0) note("\n");
}

// Returns the session's report with the peak of the whole cache: that of all its samples or beams together.
KvReport kv_of_all(const Engine& engine, const Session& session) {
  KvReport kv = session.kv();
  kv.bytes_peak = engine.cache().bytes_peak;
  return kv;
}

// Prints each sample as a block once all are finished, since they are generated in parallel.
Status print_samples(const RunOptions& options, const Engine& engine, Session& session) {
  Status written;
  KVASIR_ASSIGN_OR_RETURN(
      const std::vector<GenerateResult> results,
      session.sample(options.generate, options.samples, [&](std::size_t sample, std::string_view text) {
        if (options.json_stream) written = print_json({{"sample", sample}, {"text", text}});
        return written.ok() && !interrupted();
      }));
  KVASIR_RETURN_IF_ERROR(written);
  const double seconds = results.front().seconds;
  std::int64_t tokens = 0;
  std::int64_t longest = 0;
  bool cancelled = false;
  Status failed;  // the first failed sample's
  Json list = Json::array();
  for (std::size_t s = 0; s < results.size(); ++s) {
    const GenerateResult& result = results[s];
    tokens += result.tokens;
    longest = std::max(longest, result.kv.kept_max);
    cancelled = cancelled || result.finish_reason == FinishReason::kCancelled;
    if (failed.ok()) failed = result.status;
    list.push_back({{"text", result.text},
                    {"tokens", result.tokens},
                    {"finish_reason", finish_reason_name(result.finish_reason)},
                    {"seed", result.seed}});
    add_choices(list.back(), options.generate, result);
    if (!options.json)
      KVASIR_RETURN_IF_ERROR(
          print(fmt::format("--- sample {} of {}, seed {}, {}, ended by {}\n{}\n", s + 1, results.size(), result.seed,
                            counted(result.tokens, "token"), finish_reason_name(result.finish_reason), result.text)));
  }
  const KvReport kv = kv_of_all(engine, session);
  const std::int64_t context = engine.model().context;
  if (kv.kept_max <= context && longest > context && may_see_beyond(kv.policy, context))
    note_beyond_context(kv.policy, kMostSeen, context, "sees up to");
  if (options.json) {
    KVASIR_RETURN_IF_ERROR(print_json({{"samples", list},
                                       {"prompt_tokens", results.front().prompt_tokens},
                                       {"tokens", tokens},
                                       {"tokens_per_s", rate(tokens, seconds)},
                                       {"kv", to_json(kv)}}));
  } else {
    note("kvasir: {} samples, {} in {:.1f} s ({:.1f}/s together); KV {} {}: peak {} of {} allowed\n", results.size(),
         counted(tokens, "token"), seconds, rate(tokens, seconds), kv.policy, kv.codec, human_bytes(kv.bytes_peak),
         human_bytes(kv.budget));
  }
  KVASIR_RETURN_IF_ERROR(failed);
  return cancelled ? Status(StatusCode::kCancelled, "") : Status();
}

Status print_beams(const RunOptions& options, const Engine& engine, Session& session) {
  const BeamOptions beams{options.beams, options.length_penalty, options.generate.max_tokens,
                          options.generate.ignore_eos};
  std::vector<BeamResult> results;
  {
    ProgressBar bar("searching");
    KVASIR_ASSIGN_OR_RETURN(results, session.beam_search(beams, [&](std::int64_t done) {
      bar.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(beams.max_tokens), "tokens");
      return !interrupted();
    }));
  }
  bool cancelled = false;
  Json list = Json::array();
  for (std::size_t b = 0; b < results.size(); ++b) {
    const BeamResult& beam = results[b];
    cancelled = cancelled || beam.finish_reason == FinishReason::kCancelled;
    list.push_back({{"text", beam.text},
                    {"tokens", beam.tokens},
                    {"log_probability", beam.log_probability},
                    {"score", beam.score},
                    {"finish_reason", finish_reason_name(beam.finish_reason)}});
    if (!options.json)
      KVASIR_RETURN_IF_ERROR(
          print(fmt::format("--- beam {} of {}, score {:.4f}, {}, ended by {}\n{}\n", b + 1, results.size(), beam.score,
                            counted(beam.tokens, "token"), finish_reason_name(beam.finish_reason), beam.text)));
  }
  const KvReport kv = kv_of_all(engine, session);
  if (options.json) {
    KVASIR_RETURN_IF_ERROR(print_json({{"beams", list}, {"kv", to_json(kv)}}));
  } else {
    note("kvasir: {}; KV {} {}: peak {} of {} allowed\n", counted(static_cast<std::int64_t>(results.size()), "beam"),
         kv.policy, kv.codec, human_bytes(kv.bytes_peak), human_bytes(kv.budget));
  }
  return cancelled ? Status(StatusCode::kCancelled, "") : Status();
}

}  // namespace

Notices::Notices(const Session& session, std::int64_t context)
    : context_(context), watches_context_(may_see_beyond(session.kv().policy, context)) {}

void Notices::check(const Session& session) {
  if (!forgets_ && session.forgotten().dropped > 0) {
    forgets_ = true;
    const KvReport kv = session.kv();
    begin_line();
    note("kvasir: {} seen, {} kept: it begins to {} ({})\n", counted(kv.seen, "token"), kv.kept,
         demotes(kv.policy) ? "demote" : "forget", kv.policy);
  }
  if (!watches_context_) return;
  const KvReport kv = session.kv();
  if (kv.kept_max <= context_) return;
  watches_context_ = false;
  begin_line();
  note_beyond_context(kv.policy, kMostSeen, context_, "sees up to");
}

Status Runner::read(std::string_view text) {
  ProgressBar bar("reading", work());
  return session_.read(text, progress(bar));
}

Status Runner::say(std::string_view content, std::string_view role, const std::function<void()>& begun) {
  ProgressBar bar("reading", work());
  const Session::Progress report = progress(bar);
  return session_.say(role, content, [&](std::int64_t done, std::int64_t total) {
    if (begun) begun();
    return report(done, total);
  });
}

Result<GenerateResult> Runner::answer(const GenerateOptions& options, const Writer& write) {
  // On a shared terminal or pipe a notice waits for the end of a line, so that it splits no sentence.
  const bool shared = streams_are_one();
  Status written;
  auto result = session_.generate(options, [&](std::string_view text) {
    written = write(text);
    if (!shared || text.ends_with('\n')) notices_.check(session_);
    return written.ok() && !interrupted();
  });
  if (!written.ok()) return written;
  if (result.ok()) notices_.check(session_);
  return result;
}

bool Runner::announce(std::string_view text) {
  const KvReport kv = session_.kv();
  if (kept_behind_prompt(kv.policy, kMostSeen) == kMostSeen || session_.forgotten().dropped > 0) return false;
  const std::int64_t tokens = count_tokens(engine_, text);
  const std::int64_t all = kv.seen + tokens;
  const std::optional<std::int64_t> kept = kept_behind_prompt(kv.policy, all);
  const auto can_read = [&](const std::string& policy) {
    const auto plan = engine_.plan({.policy = policy, .codec = kv.codec, .prompt = all, .max_tokens = 0});
    if (!plan.ok() || plan->refusal.ok()) return plan.ok();
    // Another policy would mean another cache size, unless --kv-memory was given.
    return policy != kv.policy && kv_memory_ == 0 && all <= engine_.model().context && plan->bytes <= memory_bound();
  };
  // A text that will be refused is not announced.
  if (!kept || *kept >= all || !can_read(kv.policy)) return false;
  notices_.expect_forgetting();
  if (demotes(kv.policy)) {
    note("kvasir: {} to read; {} of {} are kept as they are ({}), the others demoted\n", counted(tokens, "token"),
         *kept, all, kv.policy);
    return true;
  }
  std::string remedy = "--parts goes through it part by part";
  const auto made = make_policy(kv.policy);
  const bool looks_from_the_end = made.ok() && (*made)->traits().holds_prompts;
  if (can_read("full"))
    remedy = "--kv full keeps everything";
  else if (!looks_from_the_end && can_read("snapkv:budget=1024"))
    remedy = "--kv snapkv keeps what the question at the end needs";
  note("kvasir: {} to read; {} of {} are kept ({}): {} will be forgotten; {}\n", counted(tokens, "token"), *kept, all,
       kv.policy, drops_ranges(kv.policy) ? "the middle" : "the others", remedy);
  return true;
}

Session::Progress Runner::progress(ProgressBar& bar) {
  return [&](std::int64_t done, std::int64_t total) {
    bar.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total), "tokens");
    notices_.check(session_);
    return !interrupted();
  };
}

std::int64_t count_tokens(const Engine& engine, std::string_view text) {
  const auto tokens = engine.text().encode(text, false);
  return tokens.ok() ? std::ssize(*tokens) : 0;
}

std::int64_t protected_tokens(const Engine& engine, const std::string& system) {
  std::vector<Message> messages;
  if (!system.empty()) messages.push_back({"system", system});
  const Result<std::int64_t> tokens = engine.text().system_tokens(messages);
  return tokens.ok() ? *tokens : 0;
}

void note_partly_protected(const std::string& policy, std::int64_t tokens) {
  const Result<PolicySpec> spec = PolicySpec::parse(policy);
  const std::int64_t protects = spec.ok() ? protected_by(*spec) : 0;
  if (protects > 0 && protects < tokens)
    note("kvasir: of the {} of the system message the first {} are protected ({}): a larger cache would protect all\n",
         counted(tokens, "token"), protects, printable(policy, 200));
}

void print_summary(const GenerateResult& result, std::string_view scope) {
  const KvReport& kv = result.kv;
  note(
      "kvasir: {}read {} in {:.1f} s ({:.0f}/s), wrote {} in {:.1f} s ({:.1f}/s), ended by {}, seed {}; KV {} {}: "
      "kept {} of {} seen, {} (peak {} of {} allowed)\n",
      scope, counted(result.prompt_tokens, "token"), result.prompt_seconds,
      rate(result.prompt_tokens, result.prompt_seconds), result.tokens, result.seconds,
      rate(result.tokens, result.seconds), finish_reason_name(result.finish_reason), result.seed, kv.policy, kv.codec,
      kv.kept, counted(kv.seen, "token"), human_bytes(kv.bytes), human_bytes(kv.bytes_peak), human_bytes(kv.budget));
  if (!result.draft) return;
  if (result.draft->refused.empty()) {
    note("kvasir: {} of {} came true\n", result.draft->came_true, counted(result.draft->drafted, "draft"));
  } else {
    note("kvasir: no drafts: {}\n", result.draft->refused);
  }
}

void note_forgotten(const Session& session, std::int64_t context) {
  const KvReport kv = session.kv();
  const Session::Forgotten forgotten = session.forgotten();
  if (forgotten.dropped == 0) return;
  if (!drops_ranges(kv.policy)) {
    note("kvasir: {} of the {} tokens read are {} ({}): {}\n", forgotten.dropped, kv.seen,
         demotes(kv.policy) ? "demoted" : "forgotten", kv.policy,
         demotes(kv.policy) ? "each token reads again the few pages that suit it best"
                            : "what an answer says of them may be made up; --kv full keeps everything");
    return;
  }
  // A policy that keeps what the question needs must first hold the whole text.
  const std::string remedy = kv.seen <= context ? "a larger cache, or --kv snapkv, keeps what the question needs"
                                                : fmt::format("the model was trained for {}: --parts goes through it",
                                                              counted(context, "token"));
  const std::int64_t last = forgotten.first + forgotten.dropped - 1;
  if (demotes(kv.policy)) {
    note("kvasir: tokens {} to {} of {} are demoted ({}): each token reads again the few pages that suit it best\n",
         forgotten.first, last, kv.seen, kv.policy);
  } else {
    note("kvasir: tokens {} to {} of {} are forgotten ({}): what an answer says of them is made up; {}\n",
         forgotten.first, last, kv.seen, kv.policy, remedy);
  }
}

Status run_once(const RunOptions& options, const Engine& engine, Session& session,
                std::optional<std::string_view> prompt) {
  Runner runner(engine, session, options.engine.kv_memory);
  Status read;
  if (prompt) runner.announce(*prompt);
  if (!options.system.empty()) read = runner.say(options.system, "system");
  if (read.ok() && prompt) read = options.chat ? runner.say(*prompt) : runner.read(*prompt);
  if (read.code() == StatusCode::kCancelled) {
    const KvReport kv = session.kv();
    return make_status(read.code(), "stopped while reading; {} seen, {} kept, {}", counted(kv.seen, "token"), kv.kept,
                       human_bytes(kv.bytes));
  }
  KVASIR_RETURN_IF_ERROR(read);
  if (options.chat || (!options.files.empty() && options.prompt)) note_forgotten(session, engine.model().context);
  if (options.samples > 1) return print_samples(options, engine, session);
  if (options.beams > 0) return print_beams(options, engine, session);
  bool says_how_to_stop = !options.tokens_given && !options.json && !options.chat;
  const auto write = [&](std::string_view text) {
    if (std::exchange(says_how_to_stop, false))
      note("kvasir: no -n is given: Ctrl-C stops a text that does not end by itself\n");
    if (options.json_stream) return print_json({{"text", text}});
    return options.json ? Status() : print(text);
  };
  KVASIR_ASSIGN_OR_RETURN(const GenerateResult result, runner.answer(options.generate, write));
  if (!options.save.empty()) KVASIR_RETURN_IF_ERROR(session.save(options.save));
  if (options.json) {
    Json report = {{"text", result.text},
                   {"prompt_tokens", result.prompt_tokens},
                   {"tokens", result.tokens},
                   {"tokens_per_s", rate(result.tokens, result.seconds)},
                   {"prompt_tokens_per_s", rate(result.prompt_tokens, result.prompt_seconds)},
                   {"finish_reason", finish_reason_name(result.finish_reason)},
                   {"seed", result.seed},
                   {"kv", to_json(result.kv)}};
    if (result.draft) report["draft"] = draft_json<Json>(*result.draft);
    add_choices(report, options.generate, result);
    KVASIR_RETURN_IF_ERROR(print_json(report));
  } else {
    KVASIR_RETURN_IF_ERROR(print("\n"));
    print_summary(result);
  }
  // Exit code 1 without a message: the summary has reported it.
  if (result.finish_reason == FinishReason::kCancelled) return Status(StatusCode::kCancelled, "");
  return {};
}

}  // namespace kvasir::cli
