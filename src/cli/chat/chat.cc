#include "cli/chat/chat.h"

#include <fmt/core.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "cli/chat/chat_commands.h"
#include "cli/chat/line_reader.h"
#include "cli/command.h"
#include "cli/run/answer.h"
#include "cli/run/documents.h"
#include "cli/signals.h"
#include "retention/registry.h"
#include "text/utf8.h"

namespace kvasir::cli {
namespace {

std::string with_home(const std::string& path) {
  const char* home = std::getenv("HOME");
  return path.starts_with("~/") && home != nullptr ? home + path.substr(1) : path;
}

void note_error(const Status& status) {
  write_error(fmt::format("kvasir: {}\n", printable(status.message(), 2000)));
}

class Chat {
 public:
  Chat(const RunOptions& options, Engine& engine, std::unique_ptr<Session> session, std::string documents)
      : options_(options),
        generate_(options.generate),
        engine_(engine),
        system_(options.system),
        loaded_(!options.load.empty()),
        documents_(std::move(documents)) {
    use(std::move(session));
  }

  Status run();

 private:
  void use(std::unique_ptr<Session> session) {
    runner_.reset();
    session_ = std::move(session);
    runner_.emplace(engine_, *session_, options_.engine.kv_memory);
  }

  Status obey(ChatCommand command, const std::string& argument);
  // Reads a message. If interrupted, restores the state before it and sets `taken_back`, provided memory had room for a
  // copy.
  Status say(const std::string& message, std::string_view role, bool* taken_back);
  std::unique_ptr<Session> state_before(std::int64_t tokens) const;
  void announce(const std::string& message, std::int64_t tokens, bool can_take_back);
  Status send(const std::string& text);
  Status answer(const GenerateOptions& options);
  Status again();
  Status clear();
  Status start_over(const SessionOptions& options, std::string_view done);
  Status set_system(const std::string& text);
  void set(const std::string& text);
  void read_file(const std::string& file);
  void save(const std::string& file);
  void load(const std::string& file);
  void show_kv() const;
  Status say_system();
  bool ended_by_signal() const { return interrupted() && interrupting_signal() != SIGINT; }

  const RunOptions& options_;
  GenerateOptions generate_;
  Engine& engine_;
  std::unique_ptr<Session> session_;
  std::optional<Runner> runner_;     // of session_
  std::unique_ptr<Session> before_;  // the state before the last answer; null if there is none, or no memory for it
  std::uint64_t agains_ = 0;         // repetitions of the last answer
  std::string system_;               // the system message
  bool loaded_ = false;              // the conversation was loaded, perhaps with another system message
  std::string documents_;            // put before the next message
  std::string unsent_;               // the last interrupted message, without documents; empty: it was answered
  std::optional<GenerateResult> last_;
  bool leaves_ = false;
};

Status Chat::run() {
  const std::unique_ptr<LineReader> reader = open_line_reader();
  note("kvasir: chat; /help lists commands, Ctrl-D or /bye ends, Ctrl-C stops an answer\n");
  if (!documents_.empty())
    note("kvasir: {} of documents go in front of your first message\n", human_bytes(documents_.size()));
  KVASIR_RETURN_IF_ERROR(say_system());
  while (!leaves_ && !ended_by_signal()) {
    const Typed typed = reader->read("> ");
    if (typed.kind == Typed::Kind::kEnd) break;
    if (typed.kind == Typed::Kind::kInterrupted) {
      if (ended_by_signal()) break;
      clear_interrupt();
      if (typed.text.empty()) note("kvasir: Ctrl-D or /bye ends the chat\n");
      continue;
    }
    if (typed.kind == Typed::Kind::kCut) {
      note(
          "kvasir: the line is not sent, as this terminal cuts lines at {} bytes; "
          "/read FILE reads a longer text from a file\n",
          4095);
      continue;
    }
    if (typed.kind == Typed::Kind::kDamagedPaste) {
      note(
          "kvasir: the message is not sent, as the mark of a paste in it was edited; the up arrow brings it back, and "
          "Backspace behind a mark erases the paste\n");
      continue;
    }
    if (typed.text.find_first_not_of(" \t\r\n") == std::string::npos) continue;
    const Result<ChatLine> line = parse_chat_line(typed.text);
    if (!line.ok()) {
      note_error(line.status());
    } else if (line->command) {
      if (*line->command == ChatCommand::kHelp) {
        note("{}", chat_help(reader->edits()));
      } else {
        KVASIR_RETURN_IF_ERROR(obey(*line->command, line->text));
      }
    } else {
      KVASIR_RETURN_IF_ERROR(send(line->text));
    }
    if (!ended_by_signal()) clear_interrupt();
  }
  const bool stopped = ended_by_signal();
  note("\n");
  if (last_) print_summary(*last_, "last answer: ");
  if (!options_.save.empty()) KVASIR_RETURN_IF_ERROR(session_->save(options_.save));
  return stopped ? Status(StatusCode::kCancelled, "") : Status();
}

Status Chat::obey(ChatCommand command, const std::string& argument) {
  const std::string file = with_home(argument);
  switch (command) {
    case ChatCommand::kRead: read_file(file); break;
    case ChatCommand::kSave: save(file); break;
    case ChatCommand::kLoad: load(file); break;
    case ChatCommand::kClear: return clear();
    case ChatCommand::kAgain: return again();
    case ChatCommand::kSystem: return set_system(argument);
    case ChatCommand::kSet: set(argument); break;
    case ChatCommand::kKv: show_kv(); break;
    case ChatCommand::kBye: leaves_ = true; break;
    case ChatCommand::kHelp: break;  // run() handles it, with its reader
  }
  return {};
}

Status Chat::send(const std::string& text) {
  // Checks only the text: the documents are valid, and stay for the next message if the text is not.
  if (const Status valid = check_utf8(text); !valid.ok()) {
    note_error(valid);
    return {};
  }
  std::string message = std::exchange(documents_, {});
  const std::string documents = message;
  const bool asks_documents = !message.empty();
  join_part(message, text);
  unsent_.clear();
  bool taken_back = false;
  const Status said = say(message, "user", &taken_back);
  if (said.code() == StatusCode::kCancelled && taken_back) {
    documents_ = documents;
    unsent_ = text;
    note("kvasir: stopped; the message is taken back, and /again sends it\n");
    if (asks_documents) note("kvasir: its documents go in front of your next message; /clear drops them\n");
    return {};
  }
  if (said.code() == StatusCode::kCancelled) {
    note("kvasir: stopped while reading; {} seen\n", counted(session_->kv().seen, "token"));
    if (asks_documents)
      note("kvasir: the documents are read in part only; for a whole answer /clear, and /read them again\n");
    return {};
  }
  if (said.code() == StatusCode::kInvalidArgument || said.code() == StatusCode::kResourceExhausted) {
    note_error(said);
    if (asks_documents) note("kvasir: the documents in front of this message are dropped; /read them again\n");
    return {};
  }
  KVASIR_RETURN_IF_ERROR(said);
  if (asks_documents) note_forgotten(*session_, engine_.model().context);
  agains_ = 0;
  if (Result<std::unique_ptr<Session>> fork = session_->fork(); fork.ok()) before_ = std::move(*fork);
  return answer(generate_);
}

// Returns a copy of the state if memory holds it beside a session with `tokens` more tokens; else null.
std::unique_ptr<Session> Chat::state_before(std::int64_t tokens) const {
  const KvReport kv = session_->kv();
  const auto plan = engine_.plan({.policy = kv.policy, .codec = kv.codec, .prompt = kv.seen + tokens, .max_tokens = 0});
  if (!plan.ok() || plan->bytes + kv.bytes > kv.budget) return nullptr;
  Result<std::unique_ptr<Session>> fork = session_->fork();
  return fork.ok() ? std::move(*fork) : nullptr;
}

void Chat::announce(const std::string& message, std::int64_t tokens, bool can_take_back) {
  constexpr std::int64_t kLong = 2000;  // tokens
  if (runner_->announce(message) || tokens < kLong || ::isatty(STDERR_FILENO) == 0) return;
  const std::string time = last_ && last_->prompt_tokens >= 32
                               ? fmt::format(", some {:.0f} s", static_cast<double>(tokens) * last_->prompt_seconds /
                                                                    static_cast<double>(last_->prompt_tokens))
                               : "";
  note("kvasir: {} to read{}; Ctrl-C {}\n", counted(tokens, "token"), time,
       can_take_back ? "takes the message back" : "stops");
}

Status Chat::say(const std::string& message, std::string_view role, bool* taken_back) {
  const std::int64_t tokens = count_tokens(engine_, message);
  std::unique_ptr<Session> unread = state_before(tokens);
  announce(message, tokens, unread != nullptr);
  // A refused message leaves /again as it was. Once a message is read, the state before the last answer is useless.
  Status said = runner_->say(message, role, [this] { before_.reset(); });
  if (said.code() != StatusCode::kCancelled || unread == nullptr) return said;
  use(std::move(unread));
  *taken_back = true;
  return said;
}

// Generates and prints an answer. Drops the state before it if the answer finds no other room.
Status Chat::answer(const GenerateOptions& options) {
  KVASIR_ASSIGN_OR_RETURN(last_, runner_->answer(options, print));
  if (last_->finish_reason == FinishReason::kKvMemory && before_ != nullptr) {
    before_.reset();
    GenerateOptions rest = options;
    rest.resume = true;
    if (rest.max_tokens >= 0) rest.max_tokens -= last_->tokens;
    KVASIR_ASSIGN_OR_RETURN(GenerateResult more, runner_->answer(rest, print));
    more.text = last_->text + more.text;
    more.tokens += last_->tokens;
    more.seconds += last_->seconds;
    more.prompt_tokens += last_->prompt_tokens;
    more.prompt_seconds += last_->prompt_seconds;
    last_ = std::move(more);
  }
  KVASIR_RETURN_IF_ERROR(print("\n"));
  if (last_->finish_reason == FinishReason::kLength)
    note("kvasir: cut after {}; /set tokens N allows more\n", counted(last_->tokens, "token"));
  if (last_->finish_reason == FinishReason::kContext || last_->finish_reason == FinishReason::kKvMemory)
    note("kvasir: {} is used up under policy '{}'; /clear starts over, and --kv streaming gives a chat without end\n",
         last_->finish_reason == FinishReason::kContext ? "the trained context" : "the KV memory", last_->kv.policy);
  return {};
}

Status Chat::again() {
  if (!unsent_.empty()) return send(std::string(unsent_));
  if (before_ == nullptr) {
    note("kvasir: {}\n",
         last_ ? "the state before the last answer is gone; send the question again" : "there is no answer yet");
    return {};
  }
  GenerateOptions options = generate_;
  options.resume = false;
  if (options.sampling.temperature == 0) {
    note("kvasir: with --temp 0 the answer would be the same\n");
    return {};
  }
  ++agains_;
  if (options.sampling.seed != 0) options.sampling.seed += agains_;
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<Session> fork, before_->fork());
  use(std::move(fork));
  return answer(options);
}

Status Chat::clear() {
  SessionOptions same = options_.session;
  same.policy = session_->kv().policy;
  same.protect = 0;  // the policy's spec has protect=
  return start_over(same, "cleared");
}

Status Chat::set_system(const std::string& text) {
  if (text.empty()) {
    note("  {}\n", !system_.empty() ? printable(system_, 2000)
                   : loaded_        ? "the conversation was loaded, with its system message"
                                    : "there is no system message but the template's own");
    return {};
  }
  if (const Status valid = check_utf8(text); !valid.ok()) {
    note_error(valid);
    return {};
  }
  SessionOptions fresh = options_.session;
  if (loaded_) {
    Result<PolicySpec> spec = PolicySpec::parse(session_->kv().policy);
    if (!spec.ok()) return spec.status();
    fresh.policy = without_protection(std::move(*spec)).text();
  }
  fresh.protect = protected_tokens(engine_, text);
  // Refused before the current conversation is dropped.
  const auto plan = engine_.plan({.policy = fresh.policy, .protect = fresh.protect, .prompt = 1, .max_tokens = 0});
  if (!plan.ok()) {
    note_error(plan.status());
    return {};
  }
  system_ = text;
  return start_over(fresh, "the conversation starts over with this system message");
}

void Chat::set(const std::string& text) {
  const Result<std::string> shown = set_option(text, generate_);
  if (!shown.ok()) return note_error(shown.status());
  if (!text.empty()) generate_.resume = false;
  note("{}", *shown);
}

Status Chat::start_over(const SessionOptions& options, std::string_view done) {
  before_.reset();
  unsent_.clear();
  runner_.reset();
  session_.reset();  // frees its pages before the new session takes some
  KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, engine_.new_session(options));
  use(std::move(session));
  note_partly_protected(session_->kv().policy, options.protect);
  last_.reset();
  documents_.clear();
  generate_.resume = false;
  note("kvasir: {}\n", done);
  return say_system();
}

void Chat::read_file(const std::string& file) {
  Result<std::string> text =
      file == "-" ? invalid_argument("/read takes a file; standard input is the terminal") : read_document(file);
  if (!text.ok()) {
    note_error(text.status());
    return;
  }
  join_part(documents_, *text);
  note("kvasir: {} of '{}', {}, go in front of your next message\n", human_bytes(text->size()), printable(file, 200),
       counted(count_tokens(engine_, *text), "token"));
}

void Chat::save(const std::string& file) {
  const std::vector<std::string> inputs = {options_.engine.model, options_.chat_template};
  Status status = check_session_output(file, inputs);
  if (status.ok()) status = session_->save(file);
  if (!status.ok()) {
    note_error(status);
    return;
  }
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(file, error);
  note("kvasir: saved to '{}', {}\n", printable(file, 200), human_bytes(error ? 0 : bytes));
}

void Chat::load(const std::string& file) {
  Result<Engine::LoadedSession> loaded = engine_.load_session(file);
  if (loaded.status().code() == StatusCode::kResourceExhausted && before_ != nullptr) {
    before_.reset();  // its pages may give the missing room
    loaded = engine_.load_session(file);
  }
  if (!loaded.ok()) {
    note_error(loaded.status());
    if (loaded.status().code() == StatusCode::kResourceExhausted)
      note("kvasir: it has no room beside this conversation: /clear that first, or start again with --load\n");
    return;
  }
  before_.reset();
  system_.clear();
  loaded_ = true;
  use(std::move(loaded->session));
  last_.reset();
  generate_.resume = options_.sampling_options.empty();
  const KvReport kv = session_->kv();
  note("kvasir: loaded '{}': {} seen, {} kept ({})\n", printable(file, 200), counted(kv.seen, "token"), kv.kept,
       kv.policy);
  if (loaded->other_arithmetic)
    note("kvasir: it was written by other kernels: the tokens to come may differ from what they would have been\n");
}

void Chat::show_kv() const {
  const KvReport kv = session_->kv();
  const Session::Forgotten forgotten = session_->forgotten();
  const bool demoted = demotes(kv.policy);
  note("  policy     {}, {}\n", kv.policy, kv.codec);
  note("  seen       {}\n", counted(kv.seen, "token"));
  if (forgotten.dropped == 0) {
    note("  kept       all of them\n  forgotten  nothing\n");
  } else if (drops_ranges(kv.policy)) {
    const std::int64_t end = forgotten.first + forgotten.dropped;
    if (forgotten.first > 0) {
      note("  kept       {}: 0 to {} and {} to {}\n", kv.kept, forgotten.first - 1, end, kv.seen - 1);
    } else {
      note("  kept       {}: {} to {}\n", kv.kept, end, kv.seen - 1);
    }
    note("  {}  {}: {} to {}; {}\n", demoted ? "demoted  " : "forgotten", forgotten.dropped, forgotten.first, end - 1,
         demoted ? "each token reads again the few pages that suit it best" : "no answer can draw on them");
  } else {
    note("  kept       {}, in a head from {} to {}\n", kv.kept, kv.kept_least, kv.kept_most);
    note("  {}  {}, the first of them token {}; which ones differs between layers and heads\n",
         demoted ? "demoted  " : "forgotten", forgotten.dropped, forgotten.first);
  }
  note("  bytes      {}, at most {} so far, of {} allowed\n", human_bytes(kv.bytes), human_bytes(kv.bytes_peak),
       human_bytes(kv.budget));
  if (!documents_.empty()) note("  waiting    {} in front of your next message\n", human_bytes(documents_.size()));
}

Status Chat::say_system() {
  if (system_.empty()) return {};
  bool taken_back = false;
  const Status said = say(system_, "system", &taken_back);
  if (said.code() != StatusCode::kCancelled) return said;
  note("kvasir: stopped; the system message is not {}\n", taken_back ? "read" : "read to its end");
  return {};
}

}  // namespace

Status chat(const RunOptions& options, Engine& engine, std::unique_ptr<Session> session, std::string documents) {
  return Chat(options, engine, std::move(session), std::move(documents)).run();
}

}  // namespace kvasir::cli
