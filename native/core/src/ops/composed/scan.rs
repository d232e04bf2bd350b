//! Linear recurrences by channel.
