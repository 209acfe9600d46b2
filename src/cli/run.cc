// kvasir run: continues a text, or chats.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <optional>

#include "base/counted.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "cli/chat_input.h"
#include "cli/command.h"
#include "engine/task.h"

namespace kvasir::cli {
namespace {

constexpr std::size_t kMostPrompt = std::size_t{1} << 30;
constexpr std::int64_t kMostSeen = std::numeric_limits<std::int64_t>::max();  // as far as the policy allows

struct RunOptions {
  EngineOptions engine;
  SessionOptions session;
  GenerateOptions generate;
  std::optional<std::string> prompt;
  std::string file;
  std::string chat_template;
  std::string system;
  std::string save;
  std::string load;
  int samples = 1;
  int beams = 0;  // 0: no beam search
  double length_penalty = 1;
  bool sampling_given = false;  // at least one sampling option was given
  bool engine_given = false;    // at least one option was given that a session file decides
  bool chat = false;
  bool json = false;
};

Json to_json(const KvReport& kv) {
  return {{"policy", kv.policy},
          {"codec", kv.codec},
          {"seen", kv.seen},
          {"kept", kv.kept},
          {"kept_least", kv.kept_least},
          {"kept_most", kv.kept_most},
          {"kept_max", kv.kept_max},
          {"dead_share", kv.dead_share},
          {"bytes", kv.bytes},
          {"bytes_peak", kv.bytes_peak},
          {"budget", kv.budget}};
}

double rate(std::int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

void print_summary(const GenerateResult& result, std::string_view scope = "") {
  const KvReport& kv = result.kv;
  note(
      "kvasir: {}read {} in {:.1f} s ({:.0f}/s), wrote {} in {:.1f} s ({:.1f}/s), ended by {}; KV {} {}: kept "
      "{} of {} seen, {} (peak {} of {} allowed)\n",
      scope, counted(result.prompt_tokens, "token"), result.prompt_seconds,
      rate(result.prompt_tokens, result.prompt_seconds), result.tokens, result.seconds,
      rate(result.tokens, result.seconds), finish_reason_name(result.finish_reason), kv.policy, kv.codec, kv.kept,
      counted(kv.seen, "token"), human_bytes(kv.bytes), human_bytes(kv.bytes_peak), human_bytes(kv.budget));
}

// Reports on standard error, once each, that the policy starts to drop tokens, and that it shows the model more tokens
// than that was trained for.
class Notices {
 public:
  Notices(const Session& session, std::int64_t context)
      : context_(context), watches_context_(may_see_beyond(session.kv().policy, context)) {}

  void check(const Session& session) {
    if (!forgets_ && session.forgotten().dropped > 0) {
      forgets_ = true;
      const KvReport kv = session.kv();
      begin_line();
      note("kvasir: {} seen, {} kept: it begins to forget ({})\n", counted(kv.seen, "token"), kv.kept, kv.policy);
    }
    if (!watches_context_) return;
    const KvReport kv = session.kv();
    if (kv.kept_max <= context_) return;
    watches_context_ = false;
    begin_line();
    note_beyond_context(kv.policy, kMostSeen, context_, "sees up to");
  }

 private:
  static void begin_line() {
    if (::isatty(STDERR_FILENO) != 0) note("\n");
  }

  std::int64_t context_;
  bool watches_context_;
  bool forgets_ = false;
};

class Runner {
 public:
  Runner(const RunOptions& options, const Engine& engine, Session& session)
      : options_(options), session_(session), notices_(session, engine.model().context) {}

  Status read(std::string_view text) {
    ProgressBar bar("reading");
    return session_.read(text, progress(bar));
  }
  Status say(std::string_view content, std::string_view role = "user") {
    ProgressBar bar("reading");
    return session_.say(role, content, progress(bar));
  }

  Result<GenerateResult> answer() {
    Status written;
    auto result = session_.generate(options_.generate, [&](std::string_view text) {
      if (!options_.json) written = print(text);
      notices_.check(session_);
      return written.ok() && !interrupted();
    });
    if (!written.ok()) return written;
    return result;
  }

 private:
  Session::Progress progress(ProgressBar& bar) {
    return [&](std::int64_t done, std::int64_t total) {
      bar.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total), "tokens");
      notices_.check(session_);
      return !interrupted();
    };
  }

  const RunOptions& options_;
  Session& session_;
  Notices notices_;
};

// The session's report, with the peak of the whole cache: that of all its samples or beams together.
KvReport kv_of_all(const Engine& engine, const Session& session) {
  KvReport kv = session.kv();
  kv.bytes_peak = engine.cache().bytes_peak;
  return kv;
}

// Prints each sample as a block once all are finished: they are generated side by side.
Status print_samples(const RunOptions& options, const Engine& engine, Session& session) {
  Status written;
  KVASIR_ASSIGN_OR_RETURN(
      const std::vector<GenerateResult> results,
      session.sample(options.generate, options.samples, [](std::size_t, std::string_view) { return !interrupted(); }));
  const double seconds = results.front().seconds;
  std::int64_t tokens = 0;
  std::int64_t longest = 0;
  bool cancelled = false;
  Status failed;  // of the first sample that did
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

// Reads the prompt, generates and prints. Without a prompt, continues the loaded session where it ended.
Status run_once(const RunOptions& options, const Engine& engine, Session& session,
                const std::optional<std::string>& prompt) {
  Runner runner(options, engine, session);
  Status read;
  if (!options.system.empty()) read = runner.say(options.system, "system");
  if (read.ok() && prompt) read = options.chat ? runner.say(*prompt) : runner.read(*prompt);
  if (read.code() == StatusCode::kCancelled) {
    const KvReport kv = session.kv();
    return make_status(read.code(), "stopped while reading; {} seen, {} kept, {}", counted(kv.seen, "token"), kv.kept,
                       human_bytes(kv.bytes));
  }
  KVASIR_RETURN_IF_ERROR(read);
  if (options.samples > 1) return print_samples(options, engine, session);
  if (options.beams > 0) return print_beams(options, engine, session);
  KVASIR_ASSIGN_OR_RETURN(const GenerateResult result, runner.answer());
  if (!options.save.empty()) KVASIR_RETURN_IF_ERROR(session.save(options.save));
  if (options.json) {
    KVASIR_RETURN_IF_ERROR(print_json({{"text", result.text},
                                       {"prompt_tokens", result.prompt_tokens},
                                       {"tokens", result.tokens},
                                       {"tokens_per_s", rate(result.tokens, result.seconds)},
                                       {"prompt_tokens_per_s", rate(result.prompt_tokens, result.prompt_seconds)},
                                       {"finish_reason", finish_reason_name(result.finish_reason)},
                                       {"seed", result.seed},
                                       {"kv", to_json(result.kv)}}));
  } else {
    KVASIR_RETURN_IF_ERROR(print("\n"));
    print_summary(result);
  }
  // Exit code 1 without a message: the summary has said it.
  if (result.finish_reason == FinishReason::kCancelled) return Status(StatusCode::kCancelled, "");
  return {};
}

Status converse(const RunOptions& options, const Engine& engine, Session& session) {
  Runner runner(options, engine, session);
  note("kvasir: chat; an empty line or Ctrl-D ends, Ctrl-C stops an answer\n");
  if (!options.system.empty()) KVASIR_RETURN_IF_ERROR(runner.say(options.system, "system"));
  std::optional<GenerateResult> last;
  for (;;) {
    note("> ");
    std::string line;
    if (!wait_for_input() || !std::getline(std::cin, line) || line.empty()) break;
    const Status status = runner.say(line);
    if (!status.ok() && status.code() != StatusCode::kCancelled) {
      if (status.code() != StatusCode::kInvalidArgument) return status;
      note("kvasir: {}\n", printable(status.message(), 2000));
      continue;
    }
    if (status.ok()) {
      KVASIR_ASSIGN_OR_RETURN(last, runner.answer());
      KVASIR_RETURN_IF_ERROR(print("\n"));
    }
    clear_interrupt();
    if (last && (last->finish_reason == FinishReason::kContext || last->finish_reason == FinishReason::kKvMemory)) {
      note(
          "kvasir: {} is used up and policy '{}' forgets nothing; start again with --kv streaming for a chat without "
          "end\n",
          last->finish_reason == FinishReason::kContext ? "the trained context" : "the KV memory", last->kv.policy);
      break;
    }
  }
  note("\n");
  if (last) print_summary(*last, "last answer: ");
  if (!options.save.empty()) return session.save(options.save);
  return {};
}

// Refuses options that exclude each other, and those without effect.
Status check_options(const RunOptions& options) {
  const bool several = options.samples > 1 || options.beams > 0;
  if (options.samples < 1 || options.samples > 64)
    return invalid_argument("--samples {} is outside 1 to 64", options.samples);
  if (options.beams < 0 || options.beams > 64)
    return invalid_argument("--beams {} is outside 1 to 64 (0: none)", options.beams);
  if (options.samples > 1 && options.beams > 0)
    return invalid_argument("--samples and --beams exclude each other; omit one of them");
  if (options.beams > 0 && options.generate.max_tokens < 1)
    return invalid_argument("--beams needs a number of tokens; give -n, 1 or more");
  if (options.beams > 0 && options.sampling_given)
    return invalid_argument("--beams does not sample; omit the sampling options (--temp, --top-k, --seed, ...)");
  if (options.beams > 0 && !options.generate.stop.empty())
    return invalid_argument("--beams does not support stop strings; omit --stop");
  if (options.beams == 0 && options.length_penalty != BeamOptions{}.length_penalty)
    return invalid_argument("--length-penalty scores beams; give --beams too");
  if (options.samples > 1 && options.sampling_given && options.generate.sampling.temperature == 0)
    return invalid_argument("--samples draws, and with --temp 0 all samples would be the same; omit one of them");
  if (options.sampling_given) KVASIR_RETURN_IF_ERROR(check_seeds(options.generate.sampling.seed, options.samples));
  if (several && !options.save.empty())
    return invalid_argument("--save keeps one continuation; omit --samples and --beams");
  if (!options.load.empty() && options.engine_given)
    return invalid_argument(
        "--load takes policy, page type, page size and chunk from the file; omit --kv, --kv-type, --page and --chunk");
  return {};
}

// Checks, before anything runs, that the session can be saved and replaces nothing that is read but a session file.
Status check_save(const RunOptions& options, bool reads_input) {
  if (options.save.empty()) return {};
  std::vector<std::string> inputs = {options.engine.model, options.chat_template};
  inputs.push_back(reads_input ? "/dev/stdin" : options.file);
  KVASIR_RETURN_IF_ERROR(check_output(options.save, inputs));
  return check_replaceable(options.save);
}

Status run(RunOptions options) {
  KVASIR_RETURN_IF_ERROR(check_options(options));
  std::optional<std::string> prompt = options.prompt;
  const bool loads = !options.load.empty();
  const bool talks = !loads || options.chat;
  const bool chat = talks && !prompt && options.file.empty() && ::isatty(STDIN_FILENO) != 0;
  if (!chat && !options.chat)
    for (const auto& [name, value] :
         {std::pair("--system", &options.system), {"--chat-template", &options.chat_template}})
      if (!value->empty()) return invalid_argument("{} is for a chat; add --chat", name);
  if (!chat && !options.chat && !options.engine.template_arguments.empty())
    return invalid_argument("--template-arg is for a chat; add --chat");
  if (chat && options.json) return invalid_argument("--json needs a prompt: give -p, -f or standard input");
  if (chat && (options.samples > 1 || options.beams > 0))
    return invalid_argument("--samples and --beams need a prompt: give -p, -f or standard input");
  const bool reads = !prompt && !chat && !(loads && options.file.empty());
  KVASIR_RETURN_IF_ERROR(check_save(options, chat || (reads && (options.file.empty() || options.file == "-"))));
  if (reads) {
    KVASIR_ASSIGN_OR_RETURN(prompt, read_file(options.file.empty() ? "-" : options.file, kMostPrompt));
  }
  if (prompt && prompt->empty()) return invalid_argument("the prompt is empty; give some text to continue");
  EngineOptions engine_options = options.engine;
  KVASIR_ASSIGN_OR_RETURN(engine_options.chat_template, read_chat_template(options.chat_template));
  std::unique_ptr<Engine> engine;
  {
    ProgressBar bar("loading");
    KVASIR_ASSIGN_OR_RETURN(engine, Engine::open(engine_options, [&](std::uint64_t done, std::uint64_t total) {
                              bar.update(done >> 20, total >> 20, "MiB");
                            }));
  }
  note_kv_memory(options.engine.kv_memory);
  const int several = std::max(options.samples, options.beams);
  options.session.sequences = several > 1 ? several + 1 : 1;
  std::unique_ptr<Session> session;
  if (loads) {
    KVASIR_ASSIGN_OR_RETURN(Engine::LoadedSession loaded,
                            engine->load_session(options.load, options.session.sequences));
    session = std::move(loaded.session);
    if (loaded.other_arithmetic)
      note("kvasir: {} was written by other kernels: the tokens to come may differ from what they would have been\n",
           printable(options.load, 200));
    options.generate.resume = !options.sampling_given;
  } else {
    KVASIR_ASSIGN_OR_RETURN(session, engine->new_session(options.session));
  }
  if (engine->model().pre_tokenizer_assumed)
    note(
        "kvasir: the file names no pre-tokenizer (tokenizer.ggml.pre); GPT-2's is assumed, which may cut text "
        "wrongly\n");
  catch_interrupts();
  return chat ? converse(options, *engine, *session) : run_once(options, *engine, *session, prompt);
}

void add_sampling_options(CLI::App& command, SamplingOptions& sampling) {
  command.add_option("--temp", sampling.temperature, "Temperature; 0 is greedy")->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "Keep the k likeliest tokens; 0: all")->capture_default_str();
  command.add_option("--top-p", sampling.top_p, "Keep the likeliest tokens of this much probability")
      ->capture_default_str();
  command.add_option("--min-p", sampling.min_p, "Drop tokens less likely than this share of the likeliest")
      ->capture_default_str();
  command.add_option("--repeat-penalty", sampling.repetition_penalty, "Penalty on tokens seen lately; 1: none")
      ->capture_default_str();
  command.add_option("--frequency-penalty", sampling.frequency_penalty, "Penalty per occurrence")
      ->capture_default_str();
  command.add_option("--presence-penalty", sampling.presence_penalty, "Penalty on any occurrence")
      ->capture_default_str();
  command.add_option("--penalty-window", sampling.penalty_window, "Tokens that count as lately")->capture_default_str();
  command.add_option("--seed", sampling.seed, "Seed of the sampler; 0: a fresh one")->capture_default_str();
}

}  // namespace

void add_run(CLI::App& program, Outcome& outcome) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = program.add_subcommand("run", "Continue a text, or chat; in bounded memory");
  add_engine_options(*command, options->engine);
  add_kv_memory_option(*command, options->engine);
  add_chunk_option(*command, options->engine);
  auto* prompt = command->add_option("-p,--prompt", options->prompt, "Text to continue, or with --chat to answer");
  command->add_option("-f,--file", options->file, "File with the text to continue; -: standard input")
      ->excludes(prompt)
      ->type_name("FILE");
  command->add_option("-n,--tokens", options->generate.max_tokens, "Tokens to generate; -1: until the text ends")
      ->capture_default_str();
  command->add_flag("--chat", options->chat, "Say the text as a user's message, and end after the answer");
  command->add_option("--system", options->system, "System message at the start of a chat");
  add_chat_template_option(*command, options->chat_template);
  add_template_arg_option(*command, options->engine.template_arguments);
  add_policy_option(*command, options->session.policy,
                    "Retention policy (see 'kvasir policies'); default: everything until the trained context or "
                    "--kv-memory is full, then streaming");
  command->add_flag("--ignore-eos", options->generate.ignore_eos, "Go on when the model ends its text");
  command->add_option("--stop", options->generate.stop, "End before this string; may be repeated")
      ->take_all()
      ->allow_extra_args(false);
  command->add_flag("--json", options->json, "One JSON object on standard output instead of the text");
  command->add_option("--samples", options->samples, "Continuations to sample side by side; sample i has seed + i")
      ->capture_default_str();
  command->add_option("--beams", options->beams, "Beams of a beam search, best first; 0: no beam search")
      ->capture_default_str();
  command
      ->add_option("--length-penalty", options->length_penalty,
                   "A beam's score is its log probability over its tokens to this power")
      ->capture_default_str();
  command->add_option("--save", options->save, "Write the session to this file after the run");
  command->add_option("--load", options->load, "Continue the session of this file, with or without a prompt");
  add_sampling_options(*command, options->generate.sampling);
  command->callback([options, command, &outcome] {
    const auto given = [&](std::initializer_list<const char*> names) {
      return std::ranges::any_of(names, [&](const char* name) { return command->count(name) > 0; });
    };
    options->sampling_given = given({"--temp", "--top-k", "--top-p", "--min-p", "--repeat-penalty",
                                     "--frequency-penalty", "--presence-penalty", "--penalty-window", "--seed"});
    options->engine_given = given({"--kv", "--kv-type", "--page", "--chunk"});
    for (const char* name : {"--save", "--load"})
      if (command->count(name) > 0 && (name == std::string_view("--save") ? options->save : options->load).empty()) {
        outcome.status = invalid_argument("{} needs the name of a file", name);
        return;
      }
    outcome.status = run(*options);
  });
}

}  // namespace kvasir::cli
