// kvasir demo: shows what policies keep of a text by a number hidden in its middle; answers a question about a document
// in words; and continues a text beyond the size of the cache.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/counted.h"
#include "base/status.h"
#include "cli/command.h"
#include "cli/run/documents.h"
#include "cli/run/example_texts.h"
#include "cli/signals.h"
#include "retention/registry.h"

namespace kvasir::cli {
namespace {

constexpr std::string_view kFact = "The secret number of the copper compass is";
// The question about the tale of the lamplighter.
constexpr std::string_view kQuestion = "What is the name of the lamplighter?";
constexpr std::string_view kName = "Josiah Penrose";
constexpr std::array kQuestionPolicies = {"full", "snapkv:budget=256", "streaming:cap=512"};
// Chat models are larger than the bundled one: they read only the tale's first seven chapters.
constexpr std::string_view kChapterLeftOut = "\nVIII.\n";
constexpr std::string_view kStory = "Write a long story about a lighthouse keeper who finds a letter in a bottle.";

struct DemoOptions {
  EngineOptions engine;
  std::string file;  // empty: the built-in tale
  std::string number = "48213";
  std::vector<std::string> policies;
  std::string continuation;  // policy of write_on; empty: by the kind of model
  std::int64_t tokens = 400;
  bool json = false;
};

// One policy's answer to the question.
struct Answer {
  std::string text;
  GenerateResult result;
  Session::Forgotten forgotten;
  bool found = false;
};

// Returns the position of the blank line nearest to the middle of the text, or of the middle line end.
std::size_t middle_of(std::string_view text) {
  const std::size_t half = text.size() / 2;
  for (const std::string_view separator : {"\n\n", "\n"}) {
    const std::size_t before = text.rfind(separator, half);
    const std::size_t after = text.find(separator, half);
    if (before == std::string_view::npos && after == std::string_view::npos) continue;
    if (before == std::string_view::npos) return after;
    if (after == std::string_view::npos) return before;
    return half - before < after - half ? before : after;
  }
  return text.size();
}

// Returns the text with the fact on a line of its own in the middle, and the question at the end.
std::string with_question(std::string_view text, std::string_view number) {
  const std::size_t middle = middle_of(text);
  return fmt::format("{}\n{} {}.{}\n{}", text.substr(0, middle), kFact, number, text.substr(middle), kFact);
}

struct OpenSession {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Session> session;
};

// A text to continue, or a user's message to answer.
struct Prompt {
  std::string_view text;
  bool message = false;
};

// Opens the model again, so that the cache is sized for this policy alone, and reads the prompt.
Result<OpenSession> read_under(const DemoOptions& options, const std::string& policy, const Prompt& prompt) {
  OpenSession open;
  KVASIR_ASSIGN_OR_RETURN(open.engine, Engine::open(options.engine));
  KVASIR_ASSIGN_OR_RETURN(open.session, open.engine->new_session({.policy = policy}));
  ProgressBar bar(printable(policy, 40));
  const Session::Progress progress = [&](std::int64_t done, std::int64_t total) {
    bar.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total), "tokens");
    return !interrupted();
  };
  KVASIR_RETURN_IF_ERROR(prompt.message ? open.session->say("user", prompt.text, progress)
                                        : open.session->read(prompt.text, progress));
  return open;
}

// Generates greedily. `expected`: the text that sets Answer::found.
Result<Answer> ask(const DemoOptions& options, const std::string& policy, const Prompt& prompt,
                   std::string_view expected) {
  KVASIR_ASSIGN_OR_RETURN(const OpenSession open, read_under(options, policy, prompt));
  GenerateOptions generate;
  generate.max_tokens = prompt.message ? 48 : 12;
  if (!prompt.message) generate.stop = {".", "\n"};
  generate.sampling.temperature = 0;
  Answer answer;
  KVASIR_ASSIGN_OR_RETURN(answer.result, open.session->generate(generate, [](std::string_view) { return true; }));
  answer.text =
      answer.result.text.substr(std::min(answer.result.text.find_first_not_of(' '), answer.result.text.size()));
  answer.forgotten = open.session->forgotten();
  answer.found =
      prompt.message ? answer.text.find(expected) != std::string::npos : std::string_view(answer.text) == expected;
  return answer;
}

// Returns "found", or why the answer was wrong. `missed_whole`: the model did not find the number even in the whole
// text.
std::string verdict(const Answer& answer, bool missed_whole) {
  if (answer.found) return "found";
  if (answer.forgotten.dropped == 0) return "not found, although nothing was dropped";
  if (demotes(answer.result.kv.policy))
    return fmt::format("not found: {} demoted, the first is token {}", counted(answer.forgotten.dropped, "token"),
                       answer.forgotten.first);
  return fmt::format("{}: {} dropped, the first is token {}", missed_whole ? "not found" : "forgotten",
                     counted(answer.forgotten.dropped, "token"), answer.forgotten.first);
}

Json to_json(const Answer& answer) {
  const KvReport& kv = answer.result.kv;
  return {{"policy", kv.policy},
          {"answer", answer.text},
          {"found", answer.found},
          {"seen", kv.seen},
          {"kept", kv.kept},
          {"dropped", answer.forgotten.dropped},
          {"bytes", kv.bytes},
          {"bytes_peak", kv.bytes_peak},
          {"seconds", answer.result.prompt_seconds + answer.result.seconds}};
}

// Returns a line per policy that says what it keeps.
std::string legend(const std::vector<std::string>& policies) {
  std::string lines;
  for (const std::string& policy : policies) {
    const std::string_view name = std::string_view(policy).substr(0, policy.find(':'));
    for (const PolicyInfo* info : all_policies())
      if (info->name == name) lines += fmt::format("  {:<10} {}\n", info->name, info->summary);
  }
  return lines.empty() ? lines : "\n" + lines;
}

// Asks under each policy and prints a row for each.
Result<Json> ask_all(const DemoOptions& options, const std::vector<std::string>& policies, const Prompt& prompt,
                     std::string_view expected) {
  Json answers = Json::array();
  std::size_t width = std::string_view("policy").size();
  for (const std::string& policy : policies) width = std::max(width, policy.size());
  if (!options.json)
    KVASIR_RETURN_IF_ERROR(print(fmt::format("{:<{}}  {:>13}  {:>9}  {:>9}  {:>6}  {}\n", "policy", width,
                                             "kept of seen", "KV memory", "peak", "time", "answer")));
  bool missed_whole = false;
  for (const std::string& policy : policies) {
    KVASIR_ASSIGN_OR_RETURN(const Answer answer, ask(options, policy, prompt, expected));
    answers.push_back(to_json(answer));
    missed_whole = missed_whole || (!answer.found && answer.forgotten.dropped == 0);
    if (options.json) continue;
    const KvReport& kv = answer.result.kv;
    KVASIR_RETURN_IF_ERROR(print(fmt::format(
        "{:<{}}  {:>13}  {:>9}  {:>9}  {:>4.1f} s  {}: {}\n", policy, width, fmt::format("{} of {}", kv.kept, kv.seen),
        human_bytes(kv.bytes), human_bytes(kv.bytes_peak), answer.result.prompt_seconds + answer.result.seconds,
        printable(answer.text, prompt.message ? 120 : 40), verdict(answer, missed_whole))));
  }
  return answers;
}

// Shows the number in the middle of the text, found and forgotten.
Result<Json> find_number(const DemoOptions& options, std::string_view name, std::string_view text) {
  if (!options.json)
    KVASIR_RETURN_IF_ERROR(
        print(fmt::format("In the middle of {} stands this line, and at its end the model is asked for the number:\n\n"
                          "    {} {}.\n\n",
                          name, kFact, options.number)));
  const std::string prompt = with_question(text, options.number);
  KVASIR_ASSIGN_OR_RETURN(Json answers, ask_all(options, options.policies, {.text = prompt}, options.number));
  if (!options.json) KVASIR_RETURN_IF_ERROR(print(legend(options.policies)));
  return answers;
}

// Asks a question about a document in words.
Result<Json> ask_in_words(const DemoOptions& options) {
  if (!options.json)
    KVASIR_RETURN_IF_ERROR(print(fmt::format(
        "\nThen it reads the tale of a lamplighter, whose name stands at its beginning, and is asked:\n\n    {}\n\n",
        kQuestion)));
  std::string message(the_lamplighter());
  join_part(message, kQuestion);
  return ask_all(options, {kQuestionPolicies.begin(), kQuestionPolicies.end()}, {.text = message, .message = true},
                 kName);
}

// Writes beyond what the cache holds: a story if the model answers messages, otherwise the end of the text.
Result<Json> write_on(const DemoOptions& options, const Prompt& prompt) {
  std::string policy = options.continuation;
  if (policy.empty()) policy = prompt.message ? "streaming:cap=256" : "streaming:cap=2048";
  KVASIR_ASSIGN_OR_RETURN(const OpenSession open, read_under(options, policy, prompt));
  const KvReport before = open.session->kv();
  const std::int64_t context = open.engine->model().context;
  if (!options.json)
    KVASIR_RETURN_IF_ERROR(print(
        prompt.message ? fmt::format("\nLast, a story longer than the cache, under {}:\n\n    {}\n\n", policy, kStory)
                       : fmt::format("\nThe model was trained for {}. Now it writes on from token {} under {}:\n\n",
                                     counted(context, "token"), before.seen, policy)));
  GenerateOptions generate;
  generate.max_tokens = options.tokens;
  generate.ignore_eos = true;
  generate.sampling.seed = 7;
  if (prompt.message) {
    generate.sampling.temperature = 0.7F;
    generate.sampling.dry_multiplier = 0.8F;
  } else {
    generate.sampling.repetition_penalty = 1.1F;
    generate.sampling.penalty_window = 256;
  }
  Status written;
  KVASIR_ASSIGN_OR_RETURN(const GenerateResult result, open.session->generate(generate, [&](std::string_view piece) {
    if (!options.json) written = print(piece);
    return written.ok() && !interrupted();
  }));
  KVASIR_RETURN_IF_ERROR(written);
  const KvReport& kv = result.kv;
  if (!options.json)
    KVASIR_RETURN_IF_ERROR(
        print(fmt::format("\n\nIt wrote {} in {:.1f} s ({:.0f}/s), up to token {}, and kept {}. KV memory: {} when it "
                          "began, {} at the end, {} at most.\n",
                          counted(result.tokens, "token"), result.seconds,
                          result.seconds > 0 ? static_cast<double>(result.tokens) / result.seconds : 0.0, kv.seen,
                          kv.kept, human_bytes(before.bytes), human_bytes(kv.bytes), human_bytes(kv.bytes_peak))));
  if (result.finish_reason == FinishReason::kCancelled) return Status(StatusCode::kCancelled, "");
  return Json{{"policy", kv.policy},       {"context", context},
              {"text", result.text},       {"tokens", result.tokens},
              {"seconds", result.seconds}, {"seen", kv.seen},
              {"kept", kv.kept},           {"bytes_begin", before.bytes},
              {"bytes", kv.bytes},         {"bytes_peak", kv.bytes_peak}};
}

// Returns whether the model answers messages, that is whether its file has a chat template.
Result<bool> answers_messages(const DemoOptions& options) {
  KVASIR_ASSIGN_OR_RETURN(const auto engine, Engine::open(options.engine));
  return engine->model().chat_template == "jinja";
}

Status demo(const DemoOptions& options) {
  const bool digits = options.number.size() >= 1 && options.number.size() <= 9 &&
                      std::ranges::all_of(options.number, [](char c) { return c >= '0' && c <= '9'; });
  if (!digits) return invalid_argument("--number '{}' is not 1 to 9 digits", printable(options.number, 40));
  if (options.tokens < 0) return invalid_argument("--tokens is {}; it must be at least 0", options.tokens);
  for (const std::string& policy : options.policies) KVASIR_RETURN_IF_ERROR(make_policy(policy).status());
  if (!options.continuation.empty()) KVASIR_RETURN_IF_ERROR(make_policy(options.continuation).status());
  std::string name = "a tale";
  std::string text;
  if (!options.file.empty()) {
    KVASIR_ASSIGN_OR_RETURN(text, read_document(options.file));
    name = options.file == "-" ? "the text" : printable(options.file.substr(options.file.rfind('/') + 1), 80);
  }
  catch_interrupts();
  KVASIR_ASSIGN_OR_RETURN(const bool messages, answers_messages(options));
  if (options.file.empty()) {
    const std::string_view tale = the_bell_of_saint_anne();
    text = messages ? tale.substr(0, tale.find(kChapterLeftOut)) : tale;
  }
  Json report = {{"number", options.number}};
  KVASIR_ASSIGN_OR_RETURN(report["answers"], find_number(options, name, text));
  if (messages && options.file.empty()) {
    report["question"] = kQuestion;
    KVASIR_ASSIGN_OR_RETURN(report["question_answers"], ask_in_words(options));
  }
  if (options.tokens > 0) {
    const Prompt story = messages ? Prompt{.text = kStory, .message = true} : Prompt{.text = text};
    KVASIR_ASSIGN_OR_RETURN(report["continuation"], write_on(options, story));
  }
  return options.json ? print_json(report) : Status();
}

}  // namespace

void add_demo(CLI::App& program, Outcome& outcome) {
  auto options = std::make_shared<DemoOptions>();
  options->policies = {"full", "snapkv:budget=512", "streaming:cap=512"};
  CLI::App* command =
      program.add_subcommand("demo", "Show what policies keep: a hidden number, a question, a story; a minute");
  add_model_option(*command, options->engine.model);
  add_lora_option(*command, options->engine.lora);
  command->add_option("-t,--threads", options->engine.threads, "Threads; 0: one per core")->capture_default_str();
  command
      ->add_option("-f,--file", options->file,
                   "Text in which the number is hidden; default: a tale of the program's own")
      ->type_name("FILE");
  command->add_option("--number", options->number, "The number, 1 to 9 digits; small models recall numbers of five")
      ->capture_default_str();
  command->add_option("--kv", options->policies, "Retention policy; may be repeated, one row each")
      ->take_all()
      ->allow_extra_args(false)
      ->capture_default_str();
  command->add_option(
      "--continuation", options->continuation,
      "Retention policy under which the model writes at the end; default: streaming:cap=256 for the story of a "
      "model that chats, streaming:cap=2048 for one that writes on from the end of the text");
  command->add_option("-n,--tokens", options->tokens, "Tokens to write on; 0: none")->capture_default_str();
  command->add_flag("--json", options->json, "One JSON object on standard output");
  command->callback([options, &outcome] { outcome.status = demo(*options); });
}

}  // namespace kvasir::cli
