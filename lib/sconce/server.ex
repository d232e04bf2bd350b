defmodule Sconce.Server do
  @moduledoc false
  # `use GenServer`, for a process that outlives messages which are not for it. A call that it does not know is
  # answered by an error of kind `:mismatch`; other messages are dropped. `GenServer` itself would end the process, and
  # with it a serving or a run of hours.

  alias Sconce.Error

  defmacro __using__(opts) do
    quote do
      use GenServer, unquote(opts)
      @before_compile Sconce.Server
    end
  end

  # Behind the clauses of the module.
  defmacro __before_compile__(_env) do
    quote do
      def handle_call(request, _from, state),
        do: {:reply, Sconce.Server.unknown(__MODULE__, request), state}

      def handle_cast(_request, state), do: {:noreply, state}

      def handle_info(_message, state), do: {:noreply, state}
    end
  end

  @doc "The answer to a call that a server does not know."
  @spec unknown(module, term) :: {:error, Error.t()}
  def unknown(server, request) do
    got = inspect(request, limit: 5, printable_limit: 80)
    details = %{what: "call", expected: "one of #{inspect(server)}", got: got}
    {:error, %Error{kind: :mismatch, op: :call, details: details}}
  end
end
