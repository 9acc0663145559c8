// daemon/manager/manager.cc: the manager's public methods: each is checked for a retry and handed to its part.
#include "daemon/manager/manager.h"

#include <utility>

#include "daemon/manager/impl.h"
#include "daemon/text.h"

namespace gpumem::manager {

using core::Error;
using core::Reason;

namespace {

Fingerprint Start(RequestKind kind) { return Fingerprint(static_cast<std::uint32_t>(kind)); }

void Add(const std::vector<core::ChunkSpec>& specs, Fingerprint* print) {
  print->Add(specs.size());
  for (const core::ChunkSpec& spec : specs) print->Add(spec.device).Add(spec.chunk_bytes.value()).Add(spec.count);
}

void Add(const core::Manifest& manifest, Fingerprint* print) {
  print->Add(manifest.size());
  for (const core::TensorInfo& tensor : manifest) {
    print->Add(tensor.name).Add(tensor.dtype).Add(tensor.shape).Add(tensor.offset.value()).Add(tensor.size.value());
  }
}

}  // namespace

SessionPtr Manager::Impl::Find(SessionId session) const {
  const auto it = sessions_.find(session);
  return it == sessions_.end() ? nullptr : it->second;
}

absl::Status Manager::Impl::UnknownSession(SessionId session) {
  return Error(Reason::UNKNOWN_SESSION,
               Cat("there is no session ", session.value(), " in this daemon's life; open one on the handle socket"));
}

Manager::Manager(const Options& options, const Ports& ports) : impl_(std::make_unique<Impl>(options, ports)) {
  impl_->context.Expect(impl_->context.books.SetTenantLimit(options.tenant_limit), "setting the tenant's limit");
}
Manager::~Manager() = default;

absl::Status Manager::AddDevice(const DeviceConfig& device) { return impl_->AddDevice(device); }
void Manager::OnArenaReady(const DeviceUuid& device) { impl_->OnArenaReady(device); }
void Manager::OnArenaEnded(const DeviceUuid& device, std::string_view how) { impl_->OnArenaEnded(device, how); }
void Manager::OnKeeperReady(const std::vector<KeptEntry>& held) { impl_->OnKeeperReady(held); }
void Manager::OnKeeperLost(std::string_view how) { impl_->OnKeeperLost(how); }

absl::StatusOr<SessionId> Manager::OpenSession(const core::SessionIdentity& identity) {
  return impl_->OpenSession(identity);
}
void Manager::OnSocketClosed(SessionId session) { impl_->Observe(session, core::Evidence::kSocketClosed); }
void Manager::OnPidfdReadable(SessionId session) { impl_->Observe(session, core::Evidence::kPidfdReadable); }
void Manager::OnWitnessClosed(SessionId session) { impl_->Observe(session, core::Evidence::kWitnessClosed); }

void Manager::OnFetch(SessionId session, std::uint64_t request_id, LeaseId lease, std::uint32_t first,
                      std::uint32_t count) {
  absl::Status refused;
  const SessionPtr record = impl_->Find(session);
  if (record == nullptr) {
    refused = Impl::UnknownSession(session);
  } else if (impl_->grants.UnderWay(lease)) {
    refused = Error(Reason::UNKNOWN_LEASE, Cat("lease ", lease.value(), " is not granted yet"));
  }
  if (refused.ok()) return impl_->deliveries.Fetch(record, request_id, lease, first, count);
  const absl::Status sent = impl_->context.ports.channels->SendFetchRefused(session, request_id, refused);
  if (!sent.ok()) impl_->context.Debug(Cat("a fetch's refusal was not sent: ", sent.message()));
}

void Manager::OnAcknowledge(SessionId session, std::uint64_t handles_sequence, const std::vector<bool>& imported,
                            core::Access access) {
  if (const SessionPtr record = impl_->Find(session)) {
    impl_->deliveries.Acknowledge(*record, handles_sequence, imported, access);
  }
}

void Manager::OnMapping(SessionId session, LeaseId lease, std::uint32_t first, std::uint32_t count,
                        core::Access access) {
  const absl::Status status = impl_->context.books.SetMapped(session, lease, first, count, access);
  if (!status.ok()) {
    impl_->context.Debug(Cat("session ", session.value(), ": a mapping of lease ", lease.value(),
                             " was not counted: ", status.message()));
  }
}

void Manager::RegisterHolder(SessionId session, std::uint64_t request_id, std::string name, core::Role role,
                             Reply<HolderId> reply) {
  const Fingerprint print = Start(RequestKind::kRegisterHolder).Add(name).Add(role);
  const SessionPtr record = impl_->Admit(session, request_id, print, std::move(reply));
  if (record == nullptr) return;
  impl_->AnswerSoon(record, request_id, impl_->context.books.RegisterHolder(session, name, role));
}

void Manager::Allocate(SessionId session, std::uint64_t request_id, HolderId holder, std::vector<core::ChunkSpec> specs,
                       Reply<Grant> reply) {
  Fingerprint print = Start(RequestKind::kAllocate).Add(holder);
  Add(specs, &print);
  const SessionPtr record = impl_->Admit(session, request_id, print, std::move(reply));
  if (record == nullptr) return;
  impl_->grants.Start({record, request_id, holder, core::LeaseKind::kPrivate, "", std::move(specs)});
}

void Manager::BuildSegment(SessionId session, std::uint64_t request_id, HolderId holder, std::string name,
                           std::vector<core::ChunkSpec> specs, Reply<Grant> reply) {
  Fingerprint print = Start(RequestKind::kBuildSegment).Add(holder).Add(name);
  Add(specs, &print);
  const SessionPtr record = impl_->Admit(session, request_id, print, std::move(reply));
  if (record == nullptr) return;
  impl_->grants.Start({record, request_id, holder, core::LeaseKind::kSegment, std::move(name), std::move(specs)});
}

void Manager::Release(SessionId session, std::uint64_t request_id, LeaseId lease, std::vector<core::Outcome> outcomes,
                      Reply<ReleaseResult> reply) {
  const Fingerprint print = Start(RequestKind::kRelease).Add(lease).Add(outcomes);
  const SessionPtr record = impl_->Admit(session, request_id, print, std::move(reply));
  if (record != nullptr) impl_->Release(record, request_id, lease, outcomes);
}

void Manager::SealSegment(SessionId session, std::uint64_t request_id, LeaseId lease,
                          std::vector<core::Outcome> outcomes, core::Manifest manifest, Reply<std::string> reply) {
  Fingerprint print = Start(RequestKind::kSealSegment).Add(lease).Add(outcomes);
  Add(manifest, &print);
  const SessionPtr record = impl_->Admit(session, request_id, print, std::move(reply));
  if (record != nullptr) impl_->Seal(record, request_id, lease, outcomes, std::move(manifest));
}

void Manager::AttachSegment(SessionId session, std::uint64_t request_id, HolderId holder, std::string name,
                            Reply<AttachResult> reply) {
  const Fingerprint print = Start(RequestKind::kAttachSegment).Add(holder).Add(name);
  const SessionPtr record = impl_->Admit(session, request_id, print, std::move(reply));
  if (record != nullptr) impl_->Attach(record, request_id, holder, name);
}

void Manager::DetachSegment(SessionId session, std::uint64_t request_id, AttachmentId attachment,
                            std::vector<core::Outcome> outcomes, Reply<std::monostate> reply) {
  const Fingerprint print = Start(RequestKind::kDetachSegment).Add(attachment).Add(outcomes);
  const SessionPtr record = impl_->Admit(session, request_id, print, std::move(reply));
  if (record != nullptr) impl_->Detach(record, request_id, attachment, outcomes);
}

void Manager::ReportFault(SessionId session, std::uint64_t request_id, FaultReport fault, Reply<Bytes> reply) {
  const Fingerprint print = Start(RequestKind::kReportFault)
                                .Add(fault.cuda_error)
                                .Add(fault.cuda_error_name)
                                .Add(fault.detail)
                                .Add(fault.device_uuid);
  const SessionPtr record = impl_->Admit(session, request_id, print, std::move(reply));
  if (record != nullptr) impl_->ReportFault(record, request_id, fault);
}

void Manager::RemoveSegment(std::string name, Reply<Bytes> reply) { impl_->RemoveSegment(name, std::move(reply)); }

void Manager::BeginDrain(absl::Duration grace) {
  if (std::exchange(impl_->context.draining, true)) return;
  impl_->context.Info(Cat("stopping: nothing new is granted; sessions have ", absl::FormatDuration(grace)));
  impl_->context.Publish(DaemonStoppingEvent{grace});
}
bool Manager::draining() const { return impl_->context.draining; }
bool Manager::keeper_connected() const { return impl_->context.keeper_connected; }
std::uint64_t Manager::kept_handles() const { return impl_->context.books.ReferencedByKeeper().size(); }
const core::Books& Manager::books() const { return impl_->context.books; }

}  // namespace gpumem::manager
