// kvasir run: continue a text, or talk.
#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <optional>

#include "base/mapped_file.h"
#include "base/status.h"
#include "cli/chat_input.h"
#include "cli/command.h"

namespace kvasir::cli {
namespace {

constexpr std::size_t kMostPrompt = std::size_t{1} << 30;

struct RunOptions {
  EngineOptions engine;
  SessionOptions session;
  GenerateOptions generate;
  std::optional<std::string> prompt;
  std::string file;
  std::string chat_template;
  std::string system;
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
      "kvasir: {}read {} tokens in {:.1f} s ({:.0f}/s), wrote {} in {:.1f} s ({:.1f}/s), ended by {}; KV {} {}: kept "
      "{} of {} tokens seen, {} (peak {} of {} allowed)\n",
      scope, result.prompt_tokens, result.prompt_seconds, rate(result.prompt_tokens, result.prompt_seconds),
      result.tokens, result.seconds, rate(result.tokens, result.seconds), finish_reason_name(result.finish_reason),
      kv.policy, kv.codec, kv.kept, kv.seen, human_bytes(kv.bytes), human_bytes(kv.bytes_peak), human_bytes(kv.budget));
}

// Says once, on standard error, that the policy begins to forget.
class ForgetNotice {
 public:
  void check(const Session& session) {
    if (said_ || session.forgotten().dropped == 0) return;
    said_ = true;
    const KvReport kv = session.kv();
    note("{}kvasir: {} tokens seen, {} kept: it begins to forget ({})\n", ::isatty(STDERR_FILENO) != 0 ? "\n" : "",
         kv.seen, kv.kept, kv.policy);
  }

 private:
  bool said_ = false;
};

class Runner {
 public:
  Runner(const RunOptions& options, Session& session) : options_(options), session_(session) {}

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
      notice_.check(session_);
      return written.ok() && !interrupted();
    });
    if (!written.ok()) return written;
    return result;
  }

 private:
  Session::Progress progress(ProgressBar& bar) {
    return [&](std::int64_t done, std::int64_t total) {
      bar.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total), "tokens");
      notice_.check(session_);
      return !interrupted();
    };
  }

  const RunOptions& options_;
  Session& session_;
  ForgetNotice notice_;
};

Status run_once(const RunOptions& options, Session& session, std::string_view prompt) {
  Runner runner(options, session);
  Status read;
  if (!options.system.empty()) read = runner.say(options.system, "system");
  if (read.ok()) read = options.chat ? runner.say(prompt) : runner.read(prompt);
  if (read.code() == StatusCode::kCancelled) {
    const KvReport kv = session.kv();
    return make_status(read.code(), "stopped while reading; {} tokens seen, {} kept, {}", kv.seen, kv.kept,
                       human_bytes(kv.bytes));
  }
  KVASIR_RETURN_IF_ERROR(read);
  KVASIR_ASSIGN_OR_RETURN(const GenerateResult result, runner.answer());
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
  // Less was written than was asked for, as the summary said.
  if (result.finish_reason == FinishReason::kCancelled) return Status(StatusCode::kCancelled, "");
  return {};
}

Status converse(const RunOptions& options, Session& session) {
  Runner runner(options, session);
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
      note("kvasir: {}\n", status.message());
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
  return {};
}

Status run(const RunOptions& options) {
  std::optional<std::string> prompt = options.prompt;
  const bool chat = !prompt && options.file.empty() && ::isatty(STDIN_FILENO) != 0;
  if (!chat && !options.chat)
    for (const auto& [name, value] :
         {std::pair("--system", &options.system), {"--chat-template", &options.chat_template}})
      if (!value->empty()) return invalid_argument("{} is for a chat; add --chat", name);
  if (chat && options.json) return invalid_argument("--json needs a prompt: give -p, -f or standard input");
  if (!prompt && !chat) {
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
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, engine->new_session(options.session));
  if (engine->model().pre_tokenizer_assumed)
    note(
        "kvasir: the file names no pre-tokenizer (tokenizer.ggml.pre); GPT-2's is assumed, which may cut text "
        "wrongly\n");
  if ((chat || options.chat) && engine->model().chat_template_unknown) note_stand_in(engine->model().chat_template);
  catch_interrupts();
  return chat ? converse(options, *session) : run_once(options, *session, *prompt);
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
      ->excludes(prompt);
  command->add_option("-n,--tokens", options->generate.max_tokens, "Tokens to generate; -1: until the text ends")
      ->capture_default_str();
  command->add_flag("--chat", options->chat, "Say the text as a user's message, and end after the answer");
  command->add_option("--system", options->system, "System message at the start of a chat");
  add_chat_template_option(*command, options->chat_template);
  add_policy_option(*command, options->session.policy,
                    "Retention policy (see 'kvasir policies'); default: everything until the trained context or "
                    "--kv-memory is full, then streaming");
  command->add_flag("--ignore-eos", options->generate.ignore_eos, "Go on when the model ends its text");
  command->add_option("--stop", options->generate.stop, "End before this string; may be repeated")
      ->take_all()
      ->allow_extra_args(false);
  command->add_flag("--json", options->json, "One JSON object on standard output instead of the text");
  add_sampling_options(*command, options->generate.sampling);
  command->callback([options, &outcome] { outcome.status = run(*options); });
}

}  // namespace kvasir::cli
