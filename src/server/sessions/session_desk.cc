#include "server/sessions/session_desk.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <new>
#include <system_error>

#include "base/status.h"

namespace kvasir::server {
namespace {

constexpr std::size_t kTurn = 1;  // bytes that every job counts as: tenants take turns at any size of file

Status no_memory() {
  return exhausted("the server has no memory left for the session; try again later");
}

// Replaces the path in a status by `id`: clients must not learn where files are.
Status without_path(const Status& status, std::string_view path, std::string_view id) {
  std::string message = status.message();
  for (std::size_t at = message.find(path); at != std::string::npos; at = message.find(path))
    message.replace(at, path.size(), id);
  return status.with_message(std::move(message));
}

Status no_such_session() {
  return make_status(StatusCode::kNotFound, "there is no such session").about({"session"});
}

template <class Call>
auto with_memory(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
}

// The error for a client whose session file cannot be used: names the session, and ways to go on.
Status unusable(const Status& status, const std::string& path, std::string_view id) {
  // Cuts off the engine's advice, which is for files that a user names.
  std::string reason = without_path(status, "'" + path + "'", "its file").message();
  reason.resize(std::min(reason.find("; "), reason.size()));
  for (const std::string_view subject : {"the session file ", "this "})
    if (reason.starts_with(subject)) reason.replace(0, subject.size(), "its file ");
  std::error_code unknown;
  // SessionStore::remove does not accept links.
  const auto type = std::filesystem::symlink_status(path, unknown).type();
  if (status.code() == StatusCode::kIo || type != std::filesystem::file_type::regular ||
      ::access(path.c_str(), R_OK) != 0)
    return make_status(StatusCode::kIo,
                       "the session '{}' cannot be restored: {}; whoever runs the server can mend that in the folder "
                       "of --sessions",
                       id, reason);
  // An undamaged file was refused because of this server's model or options.
  const std::string_view first = status.code() == StatusCode::kDataLoss
                                     ? ""
                                     : "whoever runs the server can start it with the model and the options that the "
                                       "session was made with, or ";
  return Status(status.code(), fmt::format("the session '{}' cannot be restored: {}; {}'DELETE /v1/sessions/{}' "
                                           "removes it, and the next request makes a new one",
                                           id, reason, first, id))
      .about({"session"});
}

Result<OpenedSession> open_file(const StepThread& steps, const std::string& path, const std::string& id) {
  Result<Engine::LoadedSession> loaded = steps.open_session(path);
  if (loaded.status().code() == StatusCode::kNotFound) return no_such_session();
  // Not enough memory to load the session: its file is sound.
  if (loaded.status().code() == StatusCode::kResourceExhausted) return without_path(loaded.status(), path, id);
  if (!loaded.ok()) return unusable(loaded.status(), path, id);
  OpenedSession opened;
  opened.session = std::move(loaded->session);
  opened.restored = true;
  opened.other_arithmetic = loaded->other_arithmetic;
  opened.kv = opened.session->kv();
  return opened;
}

// A session that a job uses. Goes back to the step thread even if the job never runs.
struct Borrowed {
  Borrowed(StepThread& thread, std::shared_ptr<Session> of) : steps(thread), session(std::move(of)) {}
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  ~Borrowed() { steps.retire(std::move(session)); }

  StepThread& steps;
  std::shared_ptr<Session> session;
};

}  // namespace

SessionDesk::SessionDesk(StepThread& steps, SessionStore store)
    : steps_(steps),
      store_(std::move(store)),
      disk_({.post = [&steps](std::function<void()> function) { steps.post(std::move(function)); }}) {}

void SessionDesk::open(const SessionName& name, const Result<SessionOptions>& fresh, bool create,
                       std::function<void(Result<OpenedSession>)> done) {
  const auto opened = std::make_shared<Result<OpenedSession>>(no_such_session());
  const Status queued = disk_.run(
      kTurn,
      [this, name, create, opened] {
        *opened = with_memory([&]() -> Result<OpenedSession> {
          if (create) KVASIR_RETURN_IF_ERROR(store_.check_room(name.tenant, name.id));
          return open_file(steps_, store_.path_of(name.tenant, name.id), name.id);
        });
      },
      [this, fresh, create, opened, done] {
        if (create && opened->status().code() == StatusCode::kNotFound) return make(fresh, done);
        done(std::move(*opened));
      },
      name.tenant);
  if (!queued.ok()) done(queued);
}

void SessionDesk::make(const Result<SessionOptions>& fresh, std::function<void(Result<OpenedSession>)> done) {
  if (!fresh.ok()) return done(fresh.status());
  const auto question = [this, options = *fresh, done](Engine& engine) {
    const auto made = std::make_shared<Result<OpenedSession>>(OpenedSession());
    Result<std::unique_ptr<Session>> session = engine.new_session(options);
    if (session.ok()) {
      (*made)->kv = (*session)->kv();
      (*made)->session = std::move(*session);
    } else {
      *made = session.status();
    }
    steps_.post([made, done] { done(std::move(*made)); });
  };
  const Status asked = steps_.ask(question, [done] { done(no_memory()); });
  if (!asked.ok()) done(asked);
}

void SessionDesk::save(const SessionName& name, std::shared_ptr<Session> session, std::function<bool()> wanted,
                       std::function<void(const Result<std::uint64_t>&)> done) {
  const auto borrowed = std::make_shared<Borrowed>(steps_, std::move(session));
  const auto result = std::make_shared<Result<std::uint64_t>>(std::uint64_t{0});
  const Status queued = disk_.run(
      kTurn,
      [this, name, borrowed, wanted = std::move(wanted), result] {
        *result = with_memory([&] { return write(name, *borrowed->session, wanted); });
      },
      [result, done] { done(*result); }, name.tenant);
  if (!queued.ok()) done(queued);
}

Result<std::uint64_t> SessionDesk::write(const SessionName& name, const Session& session,
                                         const std::function<bool()>& wanted) const {
  const Status left(StatusCode::kCancelled, "the client has left: the session stays as it was");
  if (!wanted()) return left;
  KVASIR_ASSIGN_OR_RETURN(const std::string place, store_.place_to_write(name.tenant, name.id));
  if (const Status saved = session.save(place); !saved.ok()) return without_path(saved, place, name.id);
  if (wanted()) return store_.commit(name.tenant, name.id);
  store_.discard(name.tenant, name.id);
  return left;
}

}  // namespace kvasir::server
