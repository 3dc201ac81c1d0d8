/**
 * Where the periods of a calendar end: days, weeks, months and years of a time zone, by its rules for daylight saving time.
 *
 * The zone database is that of Intl, which every Node.js has. Temporal would say the same in fewer lines; no version that this
 * package supports has it, and a polyfill is many times the size of this file.
 */

export type Period = "day" | "week" | "month" | "year";

export interface Calendar {
  readonly period: Period;
  readonly zone: string;
  /** The day of the month, the day of the week from Monday, or the month of the year that a period begins with, from 1. */
  readonly starts: number;
}

const DAY_MS = 86_400_000;
/** The period that was asked for last: nearly all requests lie in it. */
const lasts = new WeakMap<Calendar, { readonly from: number; readonly to: number }>();
const formats = new Map<string, Intl.DateTimeFormat>();

/** When the period ends in which a time lies, both in unix milliseconds. */
export function periodEnd(calendar: Calendar, at: number): number {
  const known = lasts.get(calendar);
  if (known && at >= known.from && at < known.to) return known.to;
  const { zone } = calendar;
  const local = new Date(at + offset(zone, at));
  // The period that began last, or one more where its first day is not over.
  for (let n = -1; ; n++) {
    const to = firstMoment(zone, begins(calendar, local, n + 1));
    if (at >= to) continue;
    const from = firstMoment(zone, begins(calendar, local, n));
    lasts.set(calendar, { from, to });
    return to;
  }
}

export function isZone(zone: unknown): zone is string {
  // Newer versions of Intl take offsets, too, which other languages do not.
  if (typeof zone !== "string" || !/^[A-Za-z]/.test(zone)) return false;
  try {
    offset(zone, 0);
    return true;
  } catch {
    return false;
  }
}

/** The first day of the n-th period after the one of a local date, as if it were one of UTC. */
function begins({ period, starts }: Calendar, local: Date, n: number): number {
  const [year, month, day] = [local.getUTCFullYear(), local.getUTCMonth(), local.getUTCDate()];
  if (period === "day") return Date.UTC(year, month, day + n);
  if (period === "week") return Date.UTC(year, month, day - ((local.getUTCDay() + 7 - (starts % 7)) % 7) + 7 * n);
  if (period === "year") return Date.UTC(year + n - (month < starts - 1 ? 1 : 0), starts - 1);
  // A month that is too short begins with its last day.
  const begin = (m: number) => Date.UTC(year, m, Math.min(starts, new Date(Date.UTC(year, m + 1, 0)).getUTCDate()));
  return begin(month + n - (local.getTime() < begin(month) ? 1 : 0));
}

/** The first moment of a day in a zone: midnight, the first of two, or the end of the gap that begins with it. */
function firstMoment(zone: string, day: number): number {
  const [before, after] = [offset(zone, day - DAY_MS), offset(zone, day + DAY_MS)];
  const isAfter = offset(zone, day - before) !== before && offset(zone, day - after) === after;
  return day - (isAfter ? after : before);
}

/** By how many milliseconds the clocks of a zone are ahead of UTC. */
function offset(zone: string, at: number): number {
  let format = formats.get(zone);
  if (!format) {
    format = new Intl.DateTimeFormat("en-US", { timeZone: zone, timeZoneName: "longOffset" });
    formats.set(zone, format);
  }
  const name = format.formatToParts(at).find(({ type }) => type === "timeZoneName")?.value ?? "";
  const [, sign, hours, minutes = 0, seconds = 0] = /^GMT([+-])(\d+)(?::(\d+))?(?::(\d+))?$/.exec(name) ?? [];
  const ms = (Number(hours ?? 0) * 3600 + Number(minutes) * 60 + Number(seconds)) * 1000;
  return sign === "-" ? -ms : ms;
}
