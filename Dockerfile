# The image holds the program, the roots of trust for TLS to the database, and
# nothing else. It runs as a user without rights.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags="-s -w" -o /out/ledgerd ./cmd/ledgerd

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/ledgerd /usr/bin/ledgerd
USER 65532:65532
ENV LEDGERD_LISTEN=0.0.0.0:8080
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=4s --start-period=10s --retries=3 CMD ["/usr/bin/ledgerd", "healthcheck"]
ENTRYPOINT ["/usr/bin/ledgerd"]
CMD ["serve"]
