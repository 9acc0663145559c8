// daemon/front.cc: see front.h.
#include "daemon/front.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/event_loop.h"
#include "base/lock_file.h"
#include "base/process.h"
#include "daemon/arena/arena_supervisor.h"
#include "daemon/arena/fd_closer.h"
#include "daemon/arena/probe.h"
#include "daemon/core/format.h"
#include "daemon/core/reasons.h"
#include "daemon/directories.h"
#include "daemon/driver_choice.h"
#include "daemon/journal/volatile_journal.h"
#include "daemon/keeper/keeper_client.h"
#include "daemon/manager/manager.h"
#include "daemon/observe/event_hub.h"
#include "daemon/observe/logging.h"
#include "daemon/service/server.h"
#include "daemon/session/connections.h"
#include "daemon/session/handle_sessions.h"
#include "daemon/session/listener.h"
#include "daemon/text.h"
#include "daemon/world.h"

namespace gpumem {
namespace {

using core::Reason;
using core::SessionId;
using Level = manager::Log::Level;

// Connections that may be open at once. A worker has one on handles.sock and one or two on control.sock; operators
// have few.
constexpr session::ConnectionLimits kWorkerConnections{1024, 4096};
constexpr session::ConnectionLimits kAdminConnections{64, 256};

// Names of the sockets in a systemd .socket unit (FileDescriptorName=).
constexpr char kControlName[] = "control";
constexpr char kHandlesName[] = "handles";
constexpr char kAdminName[] = "admin";

// A signal to stop that comes so soon after another is the same one.
constexpr std::chrono::milliseconds kOneStop{500};

// --- what happens before the first thread ----------------------------------------------------------------------------

struct Sockets {
  session::ListeningSocket control, handles, admin;
  UniqueFd keeper_lock;  // held as long as this front lives: a keeper serves one front
  std::optional<gid_t> operators;
};

absl::StatusOr<session::ListeningSocket> OpenSocket(std::map<std::string, UniqueFd>* inherited, const std::string& name,
                                                    const session::ListenerOptions& options) {
  const auto passed = inherited->find(name);
  if (passed == inherited->end()) return session::ListeningSocket::Bind(options);
  return session::ListeningSocket::Adopt(std::move(passed->second), options.type, name);
}

absl::StatusOr<std::optional<gid_t>> OptionalGroup(const std::string& name, std::string_view setting) {
  if (name.empty()) return std::optional<gid_t>();
  absl::StatusOr<gid_t> group = FindGroup(name, setting);
  if (!group.ok()) return group.status();
  return std::optional<gid_t>(*group);
}

// The keeper's socket file is made by the keeper; its directory may have to be made for it.
absl::Status PrepareDirectories(const Config& config, std::optional<gid_t> workers, std::optional<gid_t> operators) {
  absl::Status status = PrepareDirectory(config.socket_dir, workers ? 0750 : 0755, workers, "socket_dir");
  if (!status.ok()) return status;
  status = PrepareDirectory(config.admin_directory(), 0750, operators, "admin_dir");
  if (!status.ok()) return status;
  const std::string keeper = config.keeper_socket_path();
  const std::string keeper_dir = keeper.substr(0, std::max<std::size_t>(keeper.rfind('/'), 1));
  if (keeper_dir == config.admin_directory() || config.keeper == "connect") return absl::OkStatus();
  return PrepareDirectory(keeper_dir, 0700, std::nullopt, "keeper_socket");
}

// A second front at one keeper would take its connection away, and see the first one's memory as nobody's. so it
// is refused.
absl::StatusOr<UniqueFd> LockKeeper(const Config& config) {
  const std::string path = config.keeper_socket_path() + ".front.lock";
  UniqueFd lock;
  // Where only the keeper may write (its unit's directory in a sandbox), its unit sees to it that there is one front.
  if (TakeLockFile(path, &lock) != EWOULDBLOCK) return lock;
  return absl::FailedPreconditionError(
      Cat("another gpumemd uses the keeper at ", config.keeper_socket_path(), " (it holds ", path,
          "); stop that one, or give this one a keeper of its own with --keeper-socket"));
}

absl::StatusOr<Sockets> OpenSockets(const Config& config) {
  auto inherited = session::TakeInheritedSockets({kControlName, kHandlesName, kAdminName});
  if (!inherited.ok()) return inherited.status();
  const auto workers = OptionalGroup(config.socket_group, "socket_group");
  if (!workers.ok()) return workers.status();
  const auto operators = OptionalGroup(config.admin_group, "admin_group");
  if (!operators.ok()) return operators.status();
  if (absl::Status prepared = PrepareDirectories(config, *workers, *operators); !prepared.ok()) return prepared;

  const mode_t worker_mode = *workers ? 0660 : 0666;
  Sockets sockets;
  sockets.operators = *operators;
  absl::StatusOr<UniqueFd> keeper_lock = LockKeeper(config);
  if (!keeper_lock.ok()) return keeper_lock.status();
  sockets.keeper_lock = *std::move(keeper_lock);
  const auto open = [&](session::ListeningSocket* socket, const char* name, const session::ListenerOptions& options) {
    auto opened = OpenSocket(&*inherited, name, options);
    if (!opened.ok()) return opened.status();
    *socket = *std::move(opened);
    return absl::OkStatus();
  };
  absl::Status status =
      open(&sockets.control, kControlName, {config.control_socket(), "socket_dir", SOCK_STREAM, worker_mode, *workers});
  if (!status.ok()) return status;
  status = open(&sockets.handles, kHandlesName,
                {config.handle_socket(), "socket_dir", SOCK_SEQPACKET, worker_mode, *workers});
  if (!status.ok()) return status;
  status = open(&sockets.admin, kAdminName, {config.admin_socket(), "admin_dir", SOCK_STREAM, 0660, *operators});
  if (!status.ok()) return status;
  return sockets;
}

struct ManagedDevice {
  manager::DeviceConfig config;
  std::string pci_bus_id;
};

// What the probe saw and can be managed, with the config's limits. What is left out, and why, goes to `left_out`.
absl::StatusOr<std::vector<ManagedDevice>> ManagedDevices(const Config& config, const arena::ProbeResult& probed,
                                                          std::vector<std::string>* left_out) {
  std::vector<ManagedDevice> managed;
  for (const arena::ProbedDevice& device : probed.devices) {
    if (!device.vmm_supported || !device.posix_fd_supported) {
      left_out->push_back(
          Cat("device ", device.uuid.ToString(), " (", device.name, ") is not managed: its driver has no ",
              device.vmm_supported ? "export of memory as file descriptors" : "virtual memory management", " for it"));
      continue;
    }
    std::optional<core::Bytes> limit = config.device_limit;
    core::Bytes headroom = config.device_headroom;
    for (const DeviceOverride& one : config.devices) {
      if (one.device != device.uuid) continue;
      if (one.limit) limit = one.limit;
      if (one.headroom) headroom = *one.headroom;
    }
    const core::Bytes total(device.total_bytes);
    const core::Bytes capacity = limit && *limit < total ? *limit : total;
    if (headroom > capacity) {
      return absl::InvalidArgumentError(Cat("device ", device.uuid.ToString(), ": its headroom of ",
                                            core::FormatBytesExact(headroom), " is more than the ",
                                            core::FormatBytesExact(capacity),
                                            " to manage; lower device.headroom, or raise device.limit"));
    }
    managed.push_back(
        {{device.uuid, device.name, capacity, headroom, core::Bytes(device.granularity_bytes)}, device.pci_bus_id});
  }
  if (managed.empty()) {
    return absl::NotFoundError(Cat("the driver ", probed.driver_path, " shows no device that can be managed (it shows ",
                                   probed.devices.size(),
                                   "); check nvidia-smi and CUDA_VISIBLE_DEVICES, or simgpu for a simulated node"));
  }
  for (const DeviceOverride& one : config.devices) {
    const bool known = std::any_of(managed.begin(), managed.end(),
                                   [&](const ManagedDevice& device) { return device.config.device == one.device; });
    if (!known) left_out->push_back(Cat("the config names device ", one.device.ToString(), ", which is not here"));
  }
  return managed;
}

// SIGTERM and SIGINT end the process by default while this lives: for the one long wait before the loop runs.
class SignalsUnblocked {
 public:
  SignalsUnblocked() {
    ::sigemptyset(&signals_);
    ::sigaddset(&signals_, SIGTERM);
    ::sigaddset(&signals_, SIGINT);
    ::pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
  }
  ~SignalsUnblocked() { ::pthread_sigmask(SIG_BLOCK, &signals_, nullptr); }
  SignalsUnblocked(const SignalsUnblocked&) = delete;
  SignalsUnblocked& operator=(const SignalsUnblocked&) = delete;

 private:
  sigset_t signals_;
};

sigset_t HandledSignals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&signals, signal);
  return signals;
}

Level LevelOf(const std::string& word) {
  if (word == "debug") return Level::kDebug;
  if (word == "warning") return Level::kWarning;
  return word == "error" ? Level::kError : Level::kInfo;
}

// --- the front
// --------------------------------------------------------------------------------------------------------

class Front {
 public:
  Front(const Config& config, const sigset_t& signals, std::unique_ptr<manager::Log> log)
      : config_(config), signals_(signals), log_(std::move(log)) {}

  absl::Status Start(Sockets sockets);
  void Run() { loop_.Run(); }

 private:
  absl::Status LearnDevices();
  void MakePorts(session::ListeningSocket handles);
  absl::Status MakeManager();
  absl::Status MakeServers(Sockets sockets);
  service::Node MakeNode();
  absl::Status WatchSignals();
  void SayWhatRuns();

  session::SessionEvents MakeSessionEvents();
  void MarkUsed(std::string_view peer);
  absl::Status CheckWorker(std::string_view peer, SessionId session) const;
  absl::Status CheckOperator(std::string_view peer) const;

  void OnReadyStep();
  void BecomeReady(std::string_view how);
  void OnSignal();
  void BeginStop(int signal);
  void FinishStop();

  std::function<void(Level, const std::string&)> LogFunction() {
    return [this](Level level, const std::string& message) { log_->Write(level, message); };
  }
  void Info(const std::string& message) { log_->Write(Level::kInfo, message); }

  const Config config_;
  const sigset_t signals_;
  // From here on in the order in which one needs the other; destroyed in the opposite one.
  std::unique_ptr<manager::Log> log_;
  arena::ThreadFdCloser closer_;  // before everything that can hold a HandleFd, the loop's closures included
  EventLoop loop_;
  UniqueFd signal_fd_;
  WallClock clock_;
  LoopTimers timers_{&loop_};
  KernelRandom random_;
  observe::EventHub events_{observe::EventHub::Options{}};
  manager::Options options_;
  DriverChoice driver_;
  std::vector<ManagedDevice> devices_;
  std::unique_ptr<journal::VolatileJournal> journal_;
  std::unique_ptr<keeper::KeeperClient> keeper_;
  std::unique_ptr<arena::ArenaSupervisor> arenas_;
  std::unique_ptr<session::HandleSessions> sessions_;
  std::unique_ptr<manager::Manager> manager_;
  std::unique_ptr<session::ControlConnections> control_;
  std::unique_ptr<session::ControlConnections> operators_;
  std::unique_ptr<service::Servers> servers_;

  std::optional<gid_t> operator_group_;
  std::set<DeviceUuid> waiting_for_arenas_;
  bool waiting_for_keeper_ = true;
  bool ready_ = false;
  UniqueFd keeper_lock_;
  bool stopping_ = false;
  std::chrono::steady_clock::time_point stopping_since_;
};

absl::Status Front::Start(Sockets sockets) {
  keeper_lock_ = std::move(sockets.keeper_lock);
  if (absl::Status watched = WatchSignals(); !watched.ok()) return watched;
  if (absl::Status learnt = LearnDevices(); !learnt.ok()) return learnt;
  operator_group_ = sockets.operators;
  options_.instance = random_.Token();
  options_.first_id = FirstId(clock_.Now());
  options_.tenant_limit = config_.tenant_limit;
  MakePorts(std::move(sockets.handles));
  if (absl::Status made = MakeManager(); !made.ok()) return made;
  if (absl::Status made = MakeServers(std::move(sockets)); !made.ok()) return made;

  keeper_->Start();
  arenas_->Start();
  SayWhatRuns();
  loop_.After(absl::ToChronoNanoseconds(config_.start_grace), [this] {
    if (!ready_) BecomeReady("not everything is up yet; what is missing is still being tried");
  });
  return absl::OkStatus();
}

absl::Status Front::WatchSignals() {
  signal_fd_.reset(::signalfd(-1, &signals_, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signal_fd_) return absl::InternalError(Cat("signalfd: ", std::strerror(errno)));
  const int error = loop_.Watch(signal_fd_.get(), EPOLLIN, [this](std::uint32_t) { OnSignal(); });
  return error == 0 ? absl::OkStatus() : absl::InternalError(Cat("epoll_ctl: ", std::strerror(error)));
}

absl::Status Front::LearnDevices() {
  absl::StatusOr<DriverChoice> choice = ChooseDriver(config_, Surroundings::OfThisProcess());
  if (!choice.ok()) return choice.status();
  driver_ = *std::move(choice);
  arena::ProbeOptions options;
  options.driver = driver_.word();
  options.libcuda = driver_.libcuda;
  options.environment = driver_.environment;
  Info(Cat("asking the driver (", driver_.word(), ") for its devices"));
  absl::StatusOr<arena::ProbeResult> probed;
  {
    const SignalsUnblocked stoppable;
    probed = arena::ProbeDevices(options);
  }
  if (!probed.ok()) return probed.status();
  std::vector<std::string> left_out;
  absl::StatusOr<std::vector<ManagedDevice>> managed = ManagedDevices(config_, *probed, &left_out);
  for (const std::string& line : left_out) log_->Write(Level::kWarning, line);
  if (!managed.ok()) return managed.status();
  devices_ = *std::move(managed);
  Info(Cat("driver ", driver_.word(), " ", probed->driver_version, " (", probed->driver_path, ")"));
  return absl::OkStatus();
}

void Front::MakePorts(session::ListeningSocket handles) {
  journal_ = std::make_unique<journal::VolatileJournal>(&timers_);

  keeper::KeeperClient::Options keeper;
  keeper.loop = &loop_;
  keeper.fd_closer = &closer_;
  keeper.socket_path = config_.keeper_socket_path();
  keeper.instance = options_.instance;
  keeper.spawn = config_.keeper == "spawn";
  // A keeper of ours outlives this process, so it must not hold on to our terminal or pipe.
  keeper.keeper_log = keeper.socket_path.substr(0, keeper.socket_path.rfind('/') + 1) + "keeper.log";
  keeper.on_ready = [this](const std::vector<manager::KeptEntry>& held) {
    manager_->OnKeeperReady(held);
    waiting_for_keeper_ = false;
    OnReadyStep();
  };
  keeper.on_lost = [this](const std::string& how) { manager_->OnKeeperLost(how); };
  keeper.log = LogFunction();
  keeper_ = std::make_unique<keeper::KeeperClient>(std::move(keeper));

  arena::ArenaSupervisor::Options arenas;
  arenas.loop = &loop_;
  arenas.fd_closer = &closer_;
  arenas.driver = driver_.word();
  arenas.libcuda = driver_.libcuda;
  arenas.environment = driver_.environment;
  arenas.on_ready = [this](const DeviceUuid& device, const arena::ArenaInfo&) {
    manager_->OnArenaReady(device);
    waiting_for_arenas_.erase(device);
    OnReadyStep();
  };
  arenas.on_ended = [this](const DeviceUuid& device, const std::string& how) { manager_->OnArenaEnded(device, how); };
  arenas.log = LogFunction();
  arenas_ = std::make_unique<arena::ArenaSupervisor>(std::move(arenas));

  session::HandleSessions::Options sessions;
  sessions.limits = kWorkerConnections;
  sessions.unacknowledged_frames = options_.unacknowledged_frames;
  sessions.instance = options_.instance;
  sessions_ = std::make_unique<session::HandleSessions>(&loop_, std::move(handles), sessions, MakeSessionEvents(),
                                                        &random_, &closer_, log_.get());
}

session::SessionEvents Front::MakeSessionEvents() {
  session::SessionEvents events;
  events.open = [this](const core::SessionIdentity& identity) { return manager_->OpenSession(identity); };
  events.socket_closed = [this](SessionId session) { manager_->OnSocketClosed(session); };
  events.pidfd_readable = [this](SessionId session) { manager_->OnPidfdReadable(session); };
  events.witness_closed = [this](SessionId session) { manager_->OnWitnessClosed(session); };
  events.fetch = [this](SessionId session, std::uint64_t request_id, core::LeaseId lease, std::uint32_t first,
                        std::uint32_t count) { manager_->OnFetch(session, request_id, lease, first, count); };
  events.acknowledge = [this](SessionId session, std::uint64_t sequence, const std::vector<bool>& imported,
                              core::Access access) { manager_->OnAcknowledge(session, sequence, imported, access); };
  events.mapping = [this](SessionId session, core::LeaseId lease, std::uint32_t first, std::uint32_t count,
                          core::Access access) { manager_->OnMapping(session, lease, first, count, access); };
  return events;
}

absl::Status Front::MakeManager() {
  manager::Ports ports;
  ports.clock = &clock_;
  ports.timers = &timers_;
  ports.random = &random_;
  ports.arenas = arenas_.get();
  ports.keeper = keeper_.get();
  ports.journal = journal_.get();
  ports.channels = sessions_.get();
  ports.events = &events_;
  ports.log = log_.get();
  manager_ = std::make_unique<manager::Manager>(options_, ports);
  for (const ManagedDevice& device : devices_) {
    if (absl::Status added = manager_->AddDevice(device.config); !added.ok()) return added;
    waiting_for_arenas_.insert(device.config.device);
    arenas_->AddDevice(device.config.device);
  }
  return absl::OkStatus();
}

service::Node Front::MakeNode() {
  service::Node node;
  node.loop = &loop_;
  node.manager = manager_.get();
  node.options = options_;
  node.events = &events_;
  node.driver = driver_.simulated ? service::DriverKind::kSim : service::DriverKind::kCuda;
  node.started_at = clock_.Now();
  node.control_socket = config_.control_socket();
  node.handle_socket = config_.handle_socket();
  node.mark_used = [this](std::string_view peer) { MarkUsed(peer); };
  node.check_worker = [this](std::string_view peer, SessionId session) { return CheckWorker(peer, session); };
  node.check_operator = [this](std::string_view peer) { return CheckOperator(peer); };
  return node;
}

absl::Status Front::MakeServers(Sockets sockets) {
  absl::StatusOr<std::unique_ptr<service::Servers>> servers = service::Servers::Start(MakeNode());
  if (!servers.ok()) return servers.status();
  servers_ = *std::move(servers);

  session::ControlConnections::Options workers;
  workers.limits = kWorkerConnections;
  control_ = std::make_unique<session::ControlConnections>(
      &loop_, std::move(sockets.control), workers, [](const session::PeerIdentity&) { return absl::OkStatus(); },
      [this](int fd) { servers_->AdoptControl(fd); }, log_.get());
  session::ControlConnections::Options admin;
  admin.limits = kAdminConnections;
  operators_ = std::make_unique<session::ControlConnections>(
      &loop_, std::move(sockets.admin), admin,
      [this](const session::PeerIdentity& peer) { return session::CheckOperator(peer, ::geteuid(), operator_group_); },
      [this](int fd) { servers_->AdoptAdmin(fd); }, log_.get());

  for (const absl::Status& started : {sessions_->Start(), control_->Start(), operators_->Start()}) {
    if (!started.ok()) return started;
  }
  return absl::OkStatus();
}

// --- who may (on gRPC's threads)
// --------------------------------------------------------------------------------------

// "fd:N" is ours or nobody's: descriptors are numbered once in the process, so only one of the two tables knows N.
void Front::MarkUsed(std::string_view peer) {
  constexpr std::string_view kPrefix = "fd:";
  int fd = -1;
  if (peer.substr(0, kPrefix.size()) != kPrefix) return;
  peer.remove_prefix(kPrefix.size());
  if (std::from_chars(peer.data(), peer.data() + peer.size(), fd).ec != std::errc()) return;
  control_->MarkUsed(fd);
  operators_->MarkUsed(fd);
}

absl::Status Front::CheckWorker(std::string_view peer, SessionId session) const {
  const std::shared_ptr<const session::PeerIdentity> process = control_->FindByPeerString(peer);
  if (process == nullptr) {
    return core::Error(Reason::UNKNOWN_SESSION, "the connection of this call has ended; connect again");
  }
  switch (sessions_->CheckProcess(session, *process)) {
    case session::ProcessMatch::kSame:
      return absl::OkStatus();
    case session::ProcessMatch::kOtherProcess:
      return core::Error(Reason::FOREIGN_SESSION,
                         Cat("session ", session.value(), " belongs to another process than pid ", process->pid,
                             ", which calls; open a session of its own on handles.sock"));
    case session::ProcessMatch::kNoSuchSession:
      break;
  }
  return core::Error(Reason::UNKNOWN_SESSION,
                     Cat("there is no session ", session.value(),
                         " in this daemon's life; open one on handles.sock, from the process that calls"));
}

absl::Status Front::CheckOperator(std::string_view peer) const {
  const std::shared_ptr<const session::PeerIdentity> process = operators_->FindByPeerString(peer);
  if (process == nullptr) {
    return core::Error(Reason::NOT_AN_OPERATOR, "the connection of this call has ended; connect again");
  }
  return session::CheckOperator(*process, ::geteuid(), operator_group_);
}

// --- start and stop
// -----------------------------------------------------------------------------------------------------

void Front::SayWhatRuns() {
  for (const ManagedDevice& device : devices_) {
    const manager::DeviceConfig& config = device.config;
    Info(Cat("device ", config.device.ToString(), ": ", config.name, ", PCI ", device.pci_bus_id, ", ",
             core::FormatBytes(config.capacity), " to manage, ", core::FormatBytes(config.headroom),
             " of it headroom, granularity ", core::FormatBytes(config.granularity)));
  }
  Info(Cat("workers connect to ", config_.control_socket(), " and ", config_.handle_socket()));
  Info(Cat("operators connect to ", config_.admin_socket(), " (memctl --socket)"));
  Info(Cat("keeper: ", config_.keeper_socket_path(), " (", config_.keeper, ")"));
}

void Front::OnReadyStep() {
  if (!ready_ && !waiting_for_keeper_ && waiting_for_arenas_.empty()) BecomeReady("every device and the keeper are up");
}

void Front::BecomeReady(std::string_view how) {
  ready_ = true;
  if (stopping_) return;
  servers_->SetServing(true);
  Info(Cat("ready: ", how));
  ::sd_notify(/*unset_environment=*/0,
              Cat("READY=1\nSTATUS=", devices_.size(), devices_.size() == 1 ? " device: " : " devices: ", how).c_str());
}

void Front::OnSignal() {
  signalfd_siginfo info{};
  while (::read(signal_fd_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGHUP) {
      log_->Write(Level::kWarning, "SIGHUP changes nothing: to take a new config, restart the daemon");
    } else if (stopping_ && std::chrono::steady_clock::now() - stopping_since_ < kOneStop) {
      // The same wish once more: a signal to this process and to its group, as timeout(1) and terminals send it.
    } else if (stopping_) {
      log_->Write(Level::kWarning, "a second signal to stop: ending at once");
      log_.reset();  // writes out what waits
      ::_exit(1);
    } else {
      BeginStop(signal);
    }
  }
}

void Front::BeginStop(int signal) {
  stopping_ = true;
  stopping_since_ = std::chrono::steady_clock::now();
  Info(Cat("stopping on ", signal == SIGTERM ? "SIGTERM" : "SIGINT",
           ": new work is refused; durable memory stays with the keeper"));
  ::sd_notify(/*unset_environment=*/0, "STOPPING=1\nSTATUS=stopping");
  servers_->SetServing(false);
  manager_->BeginDrain(config_.stop_grace);
  servers_->Shutdown(absl::ToChronoMilliseconds(config_.stop_grace), [this] { FinishStop(); });
}

void Front::FinishStop() {
  arenas_->Shutdown([this] {
    Info("stopped");
    loop_.Stop();
  });
}

}  // namespace

int RunFront(const Config& config) {
  const sigset_t signals = HandledSignals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // inherited by every thread: only the signalfd gets them
  ::signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();

  absl::StatusOr<Sockets> sockets = OpenSockets(config);
  absl::Status status = sockets.status();
  if (status.ok()) {
    observe::LogOptions log;
    log.format = config.log_format == "json" ? observe::LogFormat::kJson : observe::LogFormat::kHuman;
    log.lowest = LevelOf(config.log_level);
    log.component = "front";
    Front front(config, signals, observe::InitLogging(log));
    status = front.Start(*std::move(sockets));
    if (status.ok()) {
      front.Run();
      // What is left is bookkeeping and closes of fds, which can block in a driver: a second signal ends it.
      ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
      return 0;
    }
  }
  std::fprintf(stderr, "gpumemd: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace gpumem
