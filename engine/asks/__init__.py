"""ASKS: reuse of KV beyond the token-exact prefix, in tiers that are switched, counted and audited one by one."""
