#include "server/session_desk.h"

#include "base/status.h"

namespace kvasir::server {
namespace {

Result<OpenedSession> load(Engine& engine, const std::string& path, const std::string& policy, bool create) {
  OpenedSession opened;
  Result<Engine::LoadedSession> loaded = engine.load_session(path);
  if (loaded.ok()) {
    opened.session = std::move(loaded->session);
    opened.restored = true;
    opened.other_arithmetic = loaded->other_arithmetic;
  } else {
    if (loaded.status().code() != StatusCode::kNotFound || !create) return loaded.status();
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
      KVASIR_RETURN_IF_ERROR(session->save(place));
      return store_.commit(name.tenant, name.id);
    };
    steps_.post([result = write(), done] { done(result); });
  });
  if (!asked.ok()) done(asked);
}

}  // namespace kvasir::server
