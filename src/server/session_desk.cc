#include "server/session_desk.h"

#include "base/status.h"

namespace kvasir::server {
namespace {

// The same status without the folder: where files are is no client's business.
Status without_path(const Status& status, std::string_view path, std::string_view id) {
  std::string message = status.message();
  for (std::size_t at = message.find(path); at != std::string::npos; at = message.find(path))
    message.replace(at, path.size(), id);
  return status.with_message(std::move(message));
}

Result<OpenedSession> load(Engine& engine, const std::string& path, const std::string& policy, bool create) {
  OpenedSession opened;
  Result<Engine::LoadedSession> loaded = engine.load_session(path);
  if (loaded.ok()) {
    opened.session = std::move(loaded->session);
    opened.restored = true;
    opened.other_arithmetic = loaded->other_arithmetic;
  } else {
    if (loaded.status().code() != StatusCode::kNotFound) return without_path(loaded.status(), path, "the session");
    if (!create) return make_status(StatusCode::kNotFound, "there is no such session").about({"session"});
    KVASIR_ASSIGN_OR_RETURN(opened.session, engine.new_session({.policy = policy}));
  }
  opened.kv = opened.session->kv();
  return opened;
}

}  // namespace

void SessionDesk::open(const SessionName& name, const std::string& policy, bool create,
                       std::function<void(Result<OpenedSession>)> done) {
  const Status asked =
      steps_.ask([this, path = store_.path_of(name.tenant, name.id), policy, create, done](Engine& engine) {
        auto opened = std::make_shared<Result<OpenedSession>>(load(engine, path, policy, create));
        steps_.post([opened = std::move(opened), done] { done(std::move(*opened)); });
      });
  if (!asked.ok()) done(asked);
}

void SessionDesk::save(const SessionName& name, std::shared_ptr<Session> session,
                       std::function<void(const Result<std::uint64_t>&)> done) {
  const Status asked = steps_.ask([this, name, session = std::move(session), done](Engine&) {
    const auto write = [&]() -> Result<std::uint64_t> {
      KVASIR_ASSIGN_OR_RETURN(const std::string place, store_.place_to_write(name.tenant, name.id));
      if (const Status saved = session->save(place); !saved.ok()) return without_path(saved, place, name.id);
      return store_.commit(name.tenant, name.id);
    };
    steps_.post([result = write(), done] { done(result); });
  });
  if (!asked.ok()) done(asked);
}

}  // namespace kvasir::server
