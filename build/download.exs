defmodule Sconce.Build.Download do
  @moduledoc """
  Downloads a file with OTP's own client. Certificates are checked.

  | environment variable | effect |
  |---|---|
  | `https_proxy`, `http_proxy` | the proxy for addresses with https or http, `http://user:password@host:port` |
  | `no_proxy` | hosts that are reached directly, comma-separated; `*` is all |
  | `SSL_CERT_FILE` | a file with certificates, instead of the system's |

  The variables may be in capitals, too. An address with `file` names a local file. A redirection never leads to a
  local file or from https to http.
  """

  @client :sconce
  @largest 67_108_864
  @redirections 5
  @connect_ms 15_000
  # Longer than both attempts to connect, first by IPv6.
  @idle_ms 45_000

  @doc "Returns the bytes at `address`, or a text that says why not. `idle_ms` is the longest wait for the next bytes."
  def get(address, idle_ms \\ @idle_ms), do: follow(address, idle_ms, @redirections)

  # OTP's client does not follow a redirection while it streams.
  defp follow(address, idle_ms, left) do
    with {:moved, to} <- get_once(address, idle_ms) do
      to = address |> URI.merge(to) |> to_string()

      cond do
        left == 0 -> {:error, "redirects more than #{@redirections} times"}
        not safe?(address, to) -> {:error, "redirects to #{shown(to)}, which is not followed"}
        true -> to |> follow(idle_ms, left - 1) |> redirected(to)
      end
    end
  end

  defp safe?("https:" <> _, to), do: String.starts_with?(to, "https:")
  defp safe?(_http, to), do: String.starts_with?(to, ["http:", "https:"])

  defp redirected({:error, "redirects" <> _} = error, _to), do: error
  defp redirected({:error, why}, to), do: {:error, "redirects to #{shown(to)}: #{why}"}
  defp redirected(whole, _to), do: whole

  @doc "Returns an address without its user and password."
  def shown(address), do: String.replace(address, ~r{//[^/@]*@}, "//")

  defp get_once(address, idle_ms) do
    case URI.new(address) do
      {:ok, %URI{scheme: "file", path: path}} when is_binary(path) ->
        path |> URI.decode() |> read()

      {:ok, %URI{scheme: "http", host: host} = uri} when host not in [nil, ""] ->
        ask(uri, idle_ms)

      {:ok, %URI{scheme: "https", host: host} = uri} when host not in [nil, ""] ->
        ask(uri, idle_ms)

      _ ->
        {:error, "is no address with https, http or file"}
    end
  end

  defp read(path) do
    with {:error, reason} <- File.read(path), do: {:error, to_string(:file.format_error(reason))}
  end

  # The client is a process of this name for the time of one request, so it disturbs no other client.
  defp ask(uri, idle_ms) do
    ensure!([:inets, :ssl])

    with {:ok, proxy} <- proxy(uri),
         {:ok, ssl} <- ssl(uri) do
      {:ok, _pid} = :inets.start(:httpc, profile: @client)

      try do
        proxied = if proxy, do: [proxy.option], else: []
        :ok = :httpc.set_options([ipfamily: :inet6fb4] ++ proxied, @client)
        request(uri, ssl ++ if(proxy, do: proxy.auth, else: []), idle_ms)
      after
        :inets.stop(:httpc, @client)
      end
    end
  end

  @doc "Starts applications of OTP. Mix removes those that a project does not name from the code path, since Elixir 1.15."
  def ensure!(apps) do
    for app <- apps do
      if function_exported?(Mix, :ensure_application!, 1),
        do: apply(Mix, :ensure_application!, [app])

      {:ok, _started} = Application.ensure_all_started(app)
    end
  end

  defp request(uri, http, idle_ms) do
    http = [timeout: :infinity, connect_timeout: @connect_ms, autoredirect: false] ++ http
    how = [sync: false, stream: :self, body_format: :binary]
    address = {to_charlist(URI.to_string(uri)), [{~c"user-agent", ~c"sconce"}]}

    case :httpc.request(:get, address, http, how, @client) do
      {:ok, request} -> receive_all(request, idle_ms, nil, [])
      {:error, reason} -> {:error, said(reason)}
    end
  end

  # `length` is the announced number of bytes; nil if unknown.
  defp receive_all(request, idle_ms, length, parts) do
    receive do
      {:http, {^request, :stream_start, headers}} ->
        receive_all(request, idle_ms, announced(headers), parts)

      {:http, {^request, :stream, part}} ->
        parts = [parts | part]

        if IO.iodata_length(parts) > @largest do
          :httpc.cancel_request(request, @client)
          {:error, "sent more than #{@largest} bytes"}
        else
          receive_all(request, idle_ms, length, parts)
        end

      {:http, {^request, :stream_end, _headers}} ->
        whole(IO.iodata_to_binary(parts), length)

      {:http, {^request, {:error, reason}}} ->
        {:error, broken(said(reason), length)}

      {:http, {^request, {{_version, status, reason}, headers, _body}}} ->
        case List.keyfind(headers, ~c"location", 0) do
          {_name, to} when status in 300..399 -> {:moved, to_string(to)}
          _ -> {:error, "answered #{status} #{reason}"}
        end
    after
      idle_ms ->
        :httpc.cancel_request(request, @client)
        {:error, broken("sent nothing for #{div(idle_ms, 1000)} s", length)}
    end
  end

  defp announced(headers) do
    with {_name, value} <- List.keyfind(headers, ~c"content-length", 0),
         {length, ""} <- Integer.parse(to_string(value)) do
      length
    else
      _ -> nil
    end
  end

  defp whole(bytes, length) when length in [nil, byte_size(bytes)], do: {:ok, bytes}
  defp whole(bytes, length), do: {:error, broken("ended with #{byte_size(bytes)} bytes,", length)}

  defp broken(why, nil), do: why
  defp broken(why, length), do: "#{why} before the end of its #{length} bytes"

  defp said({:failed_connect, details}) do
    to =
      case List.keyfind(details, :to_address, 0) do
        {:to_address, {host, port}} -> " to #{host}:#{port}"
        nil -> ""
      end

    # The reason is the last element of each other detail, for example of `{:inet, [:inet], :econnrefused}`.
    reasons =
      for detail <- details,
          elem(detail, 0) != :to_address,
          do: elem(detail, tuple_size(detail) - 1)

    "could not connect#{to}: #{reasons |> Enum.map(&said/1) |> Enum.uniq() |> Enum.join(", ")}"
  end

  defp said({:could_not_establish_ssl_tunnel, details}),
    do: "the proxy refused the connection: #{inspect(details)}"

  defp said({:tls_alert, {_kind, text}}), do: String.trim(to_string(text))
  defp said({:options, reason}), do: "TLS options: #{inspect(reason)}"
  defp said({:shutdown, reason}), do: said(reason)

  defp said(reason) when reason in [:socket_closed_remotely, :server_closed],
    do: "closed the connection"

  defp said(:timeout), do: "no connection within #{div(@connect_ms, 1000)} s"

  defp said(reason) when is_atom(reason) do
    case to_string(:inet.format_error(reason)) do
      "unknown POSIX error" <> _ -> to_string(reason)
      text -> text
    end
  end

  defp said(reason), do: inspect(reason)

  defp ssl(%URI{scheme: "http"}), do: {:ok, []}

  defp ssl(%URI{scheme: "https"}) do
    with {:ok, certificates} <- certificates() do
      match = :public_key.pkix_verify_hostname_match_fun(:https)

      {:ok,
       [
         ssl:
           [verify: :verify_peer, depth: 5, customize_hostname_check: [match_fun: match]] ++
             certificates
       ]}
    end
  end

  defp certificates do
    case System.get_env("SSL_CERT_FILE", "") do
      "" -> systems_certificates()
      path -> given_certificates(path)
    end
  end

  defp given_certificates(path) do
    if File.regular?(path),
      do: {:ok, [cacertfile: to_charlist(path)]},
      else: {:error, "SSL_CERT_FILE: #{path}: no such file"}
  end

  # OTP raises a match error if the system has no certificates.
  defp systems_certificates do
    {:ok, [cacerts: :public_key.cacerts_get()]}
  rescue
    _ ->
      {:error, "this system has no certificates: install ca-certificates, or set SSL_CERT_FILE"}
  end

  defp proxy(%URI{scheme: scheme, host: host}) do
    name = "#{scheme}_proxy"
    direct = "no_proxy" |> variable() |> String.split([",", " "], trim: true)
    given = variable(name)

    cond do
      given == "" or "*" in direct or Enum.any?(direct, &covers?(&1, host)) -> {:ok, nil}
      true -> parse_proxy(name, given)
    end
  end

  # `example.org` and `.example.org` cover the domain and every host below it.
  defp covers?(domain, host) do
    domain = String.trim_leading(domain, ".")
    host == domain or String.ends_with?(host, "." <> domain)
  end

  defp parse_proxy(name, given) do
    with_scheme = if given =~ "://", do: given, else: "http://" <> given

    case URI.new(with_scheme) do
      {:ok, %URI{scheme: "http", host: host, port: port, userinfo: user}}
      when host not in [nil, ""] and is_integer(port) ->
        kind = if name == "https_proxy", do: :https_proxy, else: :proxy
        {:ok, %{option: {kind, {{to_charlist(host), port}, []}}, auth: proxy_auth(user)}}

      _ ->
        {:error, "#{name} is #{inspect(shown(given))}, expected http://host:port"}
    end
  end

  defp proxy_auth(nil), do: []

  defp proxy_auth(user) do
    [name, password] = user |> String.split(":", parts: 2) |> Kernel.++([""]) |> Enum.take(2)
    [proxy_auth: {to_charlist(URI.decode(name)), to_charlist(URI.decode(password))}]
  end

  defp variable(name), do: System.get_env(name) || System.get_env(String.upcase(name)) || ""
end
